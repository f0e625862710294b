package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/vcluster"
)

func newVClusterKubeconfig(c *common) *cobra.Command {
	q := api.KubeconfigRequest{}
	var life, server, dir string
	var all bool
	cmd := &cobra.Command{
		Use:   "kubeconfig NAME... | --all",
		Short: "make kubeconfigs for users of virtual clusters, for laptops on the LAN",
		Long: "They work through the control port (TCP 7442) until they expire, are revoked, or the virtual cluster is deleted. A request wakes it.\n" +
			"One is printed; for several, for example by a pattern such as 's*', use --dir, or --link for links from which a browser or curl gets the file once.\n" +
			"Of several, those that have access already keep it: after new members came, the same command makes theirs.\n" +
			"Roles apply to the whole virtual cluster: admin has all rights there. See: rivulet kubeconfig list; end one: rivulet kubeconfig revoke USER --vcluster NAME",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case (len(args) > 0) == all:
				return usagef("%s takes names, or --all; see: %s --help", cmd.Name(), cmd.CommandPath())
			case dir != "" && q.Link:
				return usagef("--dir is for files, --link makes none; leave one of them out")
			case dir == "" && !q.Link && (all || len(args) > 1 || strings.ContainsAny(args[0], "*?[")):
				return usagef("several kubeconfigs need a folder: --dir DIR, or --link; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if q.For, err = lifetime(life); err != nil {
				return err
			}
			names := args
			if dir != "" || q.Link {
				if names, err = matching(cmd, c, args); err != nil {
					return err
				}
			}
			var have []string
			if len(names) > 1 && !q.Replace {
				var given api.Kubeconfigs
				if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodGet, "/v1/kubeconfigs", nil, &given); err != nil {
					return err
				}
				have, names = served(names, q.User, given.Kubeconfigs)
			}
			links := []vclusterLink{}
			var failed []error
			for _, name := range names {
				one := q
				one.VCluster = name
				if one.User == "" {
					one.User = name
				}
				link, err := giveVCluster(cmd, c, one, dir, server)
				if err != nil && len(names) > 1 {
					err = fmt.Errorf("%s: %w", name, err)
				}
				if failed = append(failed, err); err == nil {
					links = append(links, link)
				}
			}
			if len(have) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d have access already and keep it: %s; to end it and make others: --replace\n", len(have), strings.Join(have, ", "))
			}
			if q.Link && c.forProgram() { // links that were made are valid once, whatever failed
				failed = append(failed, c.print(cmd.OutOrStdout(), links))
			}
			return errors.Join(failed...)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "one for each virtual cluster")
	f.StringVar(&q.User, "user", "", "the user's name, for list and revoke; default: the name of the virtual cluster")
	f.StringVar(&life, "for", "30d", "validity: 30d, 4w, 12h, 45m")
	f.StringVar(&q.Role, "role", "admin", "view, edit or admin")
	f.StringVar(&server, "server", "", "address or name of this device for the laptop; default: its first address on the LAN")
	f.BoolVar(&q.Replace, "replace", false, "revoke the user's former access, and replace the file")
	f.StringVar(&dir, "dir", "", "write NAME.kubeconfig into this folder")
	f.BoolVar(&q.Link, "link", false, "print links, and QR codes on a terminal, valid once within seven days")
	return withOutput(c, cmd)
}

// served divides virtual clusters into those where the user, or one of the same name, has access, and the others.
func served(names []string, user string, given []api.Kubeconfig) (have, rest []string) {
	for _, name := range names {
		if slices.ContainsFunc(given, func(k api.Kubeconfig) bool {
			return k.VCluster == name && k.User == cmp.Or(user, name) && (k.State == "active" || k.State == "unused")
		}) {
			have = append(have, name)
		} else {
			rest = append(rest, name)
		}
	}
	return have, rest
}

// vclusterLink is a link in the output for programs.
type vclusterLink struct {
	VCluster string    `json:"vcluster"`
	User     string    `json:"user"`
	Link     string    `json:"link"`
	Until    time.Time `json:"until"`
	// Pin is the SHA-256 of the answering key, for curl --pinnedpubkey.
	Pin string `json:"pin"`
}

// matching are the virtual clusters that the arguments name; all for none.
func matching(cmd *cobra.Command, c *common, args []string) (out []string, err error) {
	var have []vcluster.View
	if err := requestVCluster(cmd.Context(), c, http.MethodGet, "", nil, &have); err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, v := range have {
		if len(args) == 0 {
			out = append(out, v.Name)
		}
		for _, pattern := range args {
			ok, err := filepath.Match(pattern, v.Name)
			if err != nil {
				return nil, usagef("%.40q is no pattern; write it like 's*'", pattern)
			}
			if ok {
				used[pattern] = true
				out = append(out, v.Name)
			}
		}
	}
	for _, pattern := range args {
		if !used[pattern] {
			return nil, fmt.Errorf("there is no virtual cluster %.60s; see: rivulet vcluster list", pattern)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("there is no virtual cluster; make one with: rivulet vcluster create NAME")
	}
	return slices.Compact(out), nil // the list is sorted by name
}

// giveVCluster creates one kubeconfig, and prints or writes it.
func giveVCluster(cmd *cobra.Command, c *common, q api.KubeconfigRequest, dir, server string) (none vclusterLink, err error) {
	out, file := cmd.OutOrStdout(), filepath.Join(dir, q.VCluster+".kubeconfig")
	if dir != "" && !q.Replace {
		if _, err := os.Lstat(file); err == nil {
			return none, fmt.Errorf("%s is there already; replace it, and end the access in it, with --replace", file)
		}
	}
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return none, fmt.Errorf("%w; choose another folder", err)
		}
	}
	made, err := kubeconfigFor(cmd, c, q, server)
	if err != nil {
		return none, err
	}
	switch {
	case q.Link && c.forProgram():
	case q.Link:
		if drawn, err := drawQR(made.URL); err == nil && isTerminal(out) {
			fmt.Fprintln(raw(out), drawn)
		}
		_, err = fmt.Fprintf(out, "%s, %s, once, until %s:\n  %s\n  curl -fsk --pinnedpubkey sha256//%s -d '' -o %s.kubeconfig %[4]s\n",
			made.User, of(made.Kubeconfig), made.Link.Local().Format(time.DateTime), made.URL, made.Pin, q.VCluster)
	case dir != "":
		if err = toFile(file, "choose another folder", func(w io.Writer) error { _, err := w.Write(made.File); return err }); err != nil {
			err = errors.Join(err, c.cluster().RevokeKubeconfig(cmd.Context(), q.User, q.VCluster))
			break
		}
		_, err = fmt.Fprintf(out, "%s: %s, %s, until %s\n", file, made.User, of(made.Kubeconfig), made.Expires.Local().Format(time.DateTime))
	default:
		if err = keepPrivate(out); err == nil {
			_, err = out.Write(made.File)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "user %s, %s, until %s; to end it: sudo rivulet kubeconfig revoke %[1]s --vcluster %[4]s\n", made.User, of(made.Kubeconfig), made.Expires.Local().Format(time.DateTime), q.VCluster)
	}
	return vclusterLink{q.VCluster, made.User, made.URL, made.Link, made.Pin}, err
}
