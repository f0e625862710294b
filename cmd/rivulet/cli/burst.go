package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/burst"
	target "rivulet/offload/target/external"
)

func newBurst(c *common) *cobra.Command {
	return group(&cobra.Command{
		Use:   "burst",
		Short: "send pods to a cluster without Rivulet, with only its kubeconfig",
	}, newBurstAdd(c), newBurstCheck(c), newBurstList(c), newBurstStatus(c), newBurstRemove(c), newBurstPlugin())
}

// burstFlags are the flags of add and check.
type burstFlags struct {
	kubeconfig, context, limits string
	insecure                    bool
	settings                    target.Settings
}

func (f *burstFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "the file from the other cluster's administrator (required)")
	cmd.Flags().StringVar(&f.context, "context", "", "the context to use, if the file has several")
	f.registerInsecure(cmd)
	cmd.Flags().StringVar(&f.settings.Namespace, "namespace", "", "where you may run pods; default: the context's")
	cmd.Flags().StringVar(&f.limits, "limits", "", "limits of all requests there, like cpu=8,memory=16Gi,pods=40; default: the namespace's quota")
	cmd.Flags().StringVar(&f.settings.Network, "network", "", "none (batch work), auto, stream or udp; default none")
	cmd.Flags().StringVar(&f.settings.Image, "image", "", "the gateway's image, or shell=IMAGE for any with a shell, into which the program is copied; default shell=busybox:stable")
	cmd.Flags().StringVar(&f.settings.Security, "pod-security", "", "auto, restricted or as-is: the namespace's Pod Security level; default auto")
	cmd.Flags().StringVar(&f.settings.Order, "order", "", "last (after home and peers) or equal (like a peer); default last")
	cmd.Flags().StringVar(&f.settings.Price, "price", "", "0 (cheapest) to 9, for namespaces that prefer the cheapest; default 0")
	cmd.Flags().StringVar(&f.settings.Arch, "arch", "", "the nodes' architecture, if nodes cannot be read; default amd64")
	cmd.Flags().StringToStringVar(&f.settings.Labels, "label", nil, "labels of the virtual node, KEY=VALUE")
}

func (f *burstFlags) registerInsecure(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.insecure, "insecure-skip-tls-verify", false, "take a kubeconfig that does not verify its server: anybody on the way gets its credential")
}

// read checks the flags, reads the file, and asks whether what it runs or reads here is meant.
func (f *burstFlags) read(cmd *cobra.Command, name string) (burst.Request, error) {
	if f.kubeconfig == "" {
		return burst.Request{}, usagef("--kubeconfig FILE is needed; see: %s --help", cmd.CommandPath())
	}
	q := burst.Request{Settings: f.settings}
	q.Settings.Name = name
	var err error
	if q.Settings.Limits, err = target.Limits(f.limits); err != nil {
		return q, usagef("--limits: %w; see: %s --help", err, cmd.CommandPath())
	}
	complete := q.Settings // missing settings are not sent, because they may exist already
	if err := complete.Complete(); err != nil {
		return q, usagef("%w; see: %s --help", err, cmd.CommandPath())
	}
	raw, err := os.ReadFile(f.kubeconfig)
	if err != nil {
		return q, fmt.Errorf("the kubeconfig: %w; name the file that the other cluster's administrator gave you", err)
	}
	dir, err := filepath.Abs(filepath.Dir(f.kubeconfig))
	if err != nil {
		return q, err
	}
	if q.Credential, err = target.ReadCredential(raw, dir, f.context, f.insecure); err != nil {
		return q, fmt.Errorf("%s: %w", f.kubeconfig, err)
	}
	if q.Settings.Namespace == "" {
		q.Settings.Namespace = q.Credential.Namespace
	}
	if uses := q.Credential.Uses(); uses != "" {
		return q, confirm(cmd, "use this kubeconfig", uses)
	}
	return q, nil
}

func newBurstAdd(c *common) *cobra.Command {
	var f burstFlags
	var replace bool
	cmd := &cobra.Command{
		Use:   "add NAME --kubeconfig FILE",
		Short: "add a namespace of another cluster as virtual node burst-NAME",
		Long: "The rights of an ordinary user in one namespace are enough. Missing rights are listed, with the smallest Role that an administrator has to grant.\n" +
			"The credential is stored encrypted with this device's identity. Token and certificate files of the kubeconfig stay where they are, and are read again when renewed.\n" +
			"A kubeconfig may name a command (exec) or files of this device: they are shown, and confirmed. Only root may be able to change them. The command runs as the user nobody, with the environment that the kubeconfig gives it.\n" +
			"Exit code 0: added; 3: not added, because rights are missing; 1: failed.",
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := f.read(cmd, args[0])
			if err != nil {
				return err
			}
			q.Replace = replace
			var found burst.Added
			if err := requestBurst(cmd.Context(), c, http.MethodPost, "/v1/burst", q, &found); err != nil {
				return err
			}
			return printFound(cmd.OutOrStdout(), c, args[0], found)
		},
	}
	f.register(cmd)
	yesFlag(cmd)
	cmd.Flags().BoolVar(&replace, "replace", false, "change the credential or settings of an existing target; omitted ones stay. Not needed if its credential is refused")
	return withOutput(c, cmd)
}

func newBurstCheck(c *common) *cobra.Command {
	var f burstFlags
	cmd := &cobra.Command{
		Use:   "check --kubeconfig FILE",
		Short: "check whether pods can be sent there, without changes; works on any machine",
		Long:  "Exit code 0: they can; 3: rights are missing; 1: failed.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.read(cmd, "check")
			if err != nil {
				return err
			}
			if err := q.Settings.Complete(); err != nil {
				return err
			}
			report, err := target.Examine(cmd.Context(), q.Settings, q.Credential, "")
			if err != nil {
				return err
			}
			return printFound(cmd.OutOrStdout(), c, "", burst.Added{Report: report, Added: report.Fit()})
		},
	}
	f.register(cmd)
	yesFlag(cmd)
	return withOutput(c, cmd)
}

// newBurstPlugin is run by this program itself.
func newBurstPlugin() *cobra.Command {
	return &cobra.Command{
		Use: "plugin COMMAND [ARGUMENT...]", Short: "run a kubeconfig's plug-in without rights", Hidden: true, DisableFlagParsing: true,
		Example: "rivulet burst plugin /usr/local/bin/campus-login",
		RunE: func(cmd *cobra.Command, args []string) error {
			out, err := target.RunPlugin(cmd.Context(), args)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
}

// printFound prints the findings; name is empty if nothing was to be added.
func printFound(out io.Writer, c *common, name string, found burst.Added) error {
	if c.forProgram() {
		if err := c.print(out, found); err != nil {
			return err
		}
	} else {
		room, ends := roomText(found.Room), endsText(found.Ends, found.Renewed)
		for _, row := range [][2]string{{"server", found.Server + " (" + dash(found.Version) + ")"}, {"namespace", found.Namespace}, {"user", found.User}, {"room", room},
			{"security", found.Security}, {"credential", ends}} {
			if row[1] != "" || row[0] == "namespace" {
				fmt.Fprintf(out, "%-10s  %s\n", row[0], row[1])
			}
		}
		if len(found.Others) > 0 {
			fmt.Fprintf(out, "shared with %d other Rivulet homes: %s\n", len(found.Others), strings.Join(found.Others, ", "))
		}
		for _, note := range found.Notes {
			fmt.Fprintf(out, "note        %s\n", note)
		}
		printMissing(out, found.Report)
		if name != "" && found.Added {
			fmt.Fprintf(out, "\n%s is added as virtual node burst-%s. Next: rivulet offload NAMESPACE\n", name, name)
		}
	}
	if !found.Fit() {
		return &exitError{exitNotReady, errors.New("rights are missing, so nothing was added; have an administrator of that cluster grant the Role above, and run it again")}
	}
	return nil
}

func printMissing(out io.Writer, r target.Report) {
	if len(r.Missing) == 0 {
		return
	}
	fmt.Fprintln(out, "\nThis user may not:")
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	for _, m := range r.Missing {
		must := ""
		if m.Needed {
			must = "needed: "
		}
		fmt.Fprintf(w, "  %s\t%s%s\n", m.Right, must, m.Without)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\nThe smallest Role that has all of it:\n\n%s", r.Role)
}

func newBurstList(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "list", Short: "list the added clusters", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, err := burstViews(cmd.Context(), c)
			if err != nil {
				return err
			}
			return result(cmd, c, views, func(out io.Writer, views []burst.View) error { return printBursts(out, views, c.output == "wide") })
		},
	}, "wide")
}

func printBursts(out io.Writer, views []burst.View, wide bool) error {
	head := "NAME\tSTATE\tSERVER\tNAMESPACE\tROOM\tNETWORK\tREASON"
	if wide {
		head += "\tVERSION\tLIMITS\tSECURITY\tANSWERS IN"
	}
	return table(out, "no burst target; add one with: rivulet burst add NAME --kubeconfig FILE", head, views, func(v burst.View) []any {
		state, why := burstState(v)
		cells := []any{v.Name, state, v.Server, v.Namespace, dash(roomText(v.State.Room)), v.Network, dash(why)}
		if wide {
			cells = append(cells, dash(v.State.Version), dash(roomText(v.Limits)), dash(v.State.Security), v.State.RTT.Round(time.Millisecond))
		}
		return cells
	})
}

func newBurstStatus(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use: "status NAME", Short: "show all details of one target",
		Long: "Exit code 0: pods can be sent there; 3: they cannot now.",
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			views, err := burstViews(cmd.Context(), c)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(views, func(v burst.View) bool { return v.Name == args[0] })
			if i < 0 {
				return fmt.Errorf("there is no burst target %.60q; see: rivulet burst list", args[0])
			}
			if err := result(cmd, c, views[i], printBurst); err != nil {
				return err
			}
			if state, _ := burstState(views[i]); state != "Ready" {
				return &exitError{code: exitNotReady}
			}
			return nil
		},
	})
}

func printBurst(out io.Writer, v burst.View) error {
	state, why := burstState(v)
	var rows [][2]string
	row := func(key, value string) { rows = append(rows, [2]string{key, value}) }
	row("state", state)
	row("reason", why)
	row("node", "burst-"+v.Name)
	row("server", strings.TrimSpace(v.Server+" "+v.State.Version))
	row("namespace", v.Namespace)
	row("room", roomText(v.State.Room))
	row("limits", roomText(v.Limits))
	row("security", v.State.Security)
	row("order", v.Order)
	row("price", v.Price)
	row("network", v.Network)
	if v.State.Ready {
		row("answers in", v.State.RTT.Round(time.Millisecond).String())
	}
	row("credential", endsText(v.Ends, v.Renewed))
	for _, note := range v.State.Notes {
		row("note", note)
	}
	if err := gatewayRows(v.Gateway, row); err != nil {
		return err
	}
	return pairs(out, rows)
}

func newBurstRemove(c *common) *cobra.Command {
	var f burstFlags
	var force, purge bool
	var cluster string
	cmd := &cobra.Command{
		Use:   "remove NAME [--force] | remove --kubeconfig FILE --purge [--cluster ID]",
		Short: "remove a target, with all objects of this cluster there",
		Long: "Owners replace the pods that ran there. A target that does not answer is cleaned up when it answers again, also after a restart;\n" +
			"with --force its record is removed. With --kubeconfig and --purge, on any machine, objects that a home has left there are deleted without that home.",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case purge && len(args) == 0:
				return purgeBurst(cmd, &f, cluster)
			case purge || f.kubeconfig != "" || cluster != "":
				return usagef("--purge goes with --kubeconfig FILE and without a name; see: %s --help", cmd.CommandPath())
			}
			if err := oneName(cmd, args); err != nil {
				return err
			}
			targets, err := c.burstNames(cmd.Context(), cmd)
			if err := known("burst target", args[0], "rivulet burst list", targets, err); err != nil {
				return err
			}
			if err := confirm(cmd, "remove burst target "+args[0]+" and delete all that this cluster has there", c.podsAt(cmd.Context(), "burst-"+args[0])); err != nil {
				return err
			}
			var gone burst.Removed
			path := "/v1/burst/" + url.PathEscape(args[0])
			if force {
				path += "?force"
			}
			if err := requestBurst(cmd.Context(), c, http.MethodDelete, path, nil, &gone); err != nil {
				return err
			}
			return printRemoved(cmd, c, args[0], gone)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove the record of a target that does not answer, with its objects there unremoved")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "with --purge: its kubeconfig")
	cmd.Flags().StringVar(&f.context, "context", "", "with --purge: the context to use")
	f.registerInsecure(cmd)
	cmd.Flags().StringVar(&f.settings.Namespace, "namespace", "", "with --purge: where; default: the context's")
	cmd.Flags().BoolVar(&purge, "purge", false, "delete a home's objects in the namespace, without that home")
	cmd.Flags().StringVar(&cluster, "cluster", "", "with --purge: the home, if there are several")
	yesFlag(cmd)
	return withOutput(c, cmd)
}

// podsAt describes in sentences which pods end on a target; empty if that is unknown.
func (c *common) podsAt(ctx context.Context, name string) string {
	d, err := c.cluster().Drain(ctx, name)
	if err != nil {
		return ""
	}
	return d.String()
}

func printRemoved(cmd *cobra.Command, c *common, name string, gone burst.Removed) error {
	switch {
	case gone.Waiting == "":
		return resultf(cmd, c, gone, "%s is removed; %d objects were deleted there\n", name, gone.Gone)
	case gone.Forgotten && gone.Kept:
		return resultf(cmd, c, gone, "%s is forgotten. What it has in namespace %s of %s stays there: another target may use it\n", name, gone.Namespace, gone.Server)
	case gone.Forgotten:
		return resultf(cmd, c, gone, "%s is forgotten. It was not cleaned up: %s\nLater, from any machine: rivulet burst remove --kubeconfig FILE --namespace %s --purge --cluster %s\n",
			name, gone.Waiting, gone.Namespace, gone.Cluster)
	}
	return resultf(cmd, c, gone, "%s is taken out. It cannot be cleaned up now: %s\nThat is tried on; see: rivulet burst list; or, to give up: rivulet burst remove %s --force\n", name, gone.Waiting, name)
}

func purgeBurst(cmd *cobra.Command, f *burstFlags, cluster string) error {
	q, err := f.read(cmd, "purge")
	if err != nil {
		return err
	}
	if cluster == "" {
		homes, err := target.Homes(cmd.Context(), q.Credential, q.Settings.Namespace)
		switch {
		case err != nil:
			return err
		case len(homes) == 0:
			return printf(cmd, "nothing of any Rivulet home is in namespace %s\n", q.Settings.Namespace)
		case len(homes) > 1:
			return fmt.Errorf("several homes have something in namespace %s; say which: --cluster %s", q.Settings.Namespace, strings.Join(homes, " or --cluster "))
		}
		cluster = homes[0]
	}
	if err := confirm(cmd, fmt.Sprintf("delete all that home %s has in namespace %s of %s", cluster, q.Settings.Namespace, q.Credential.Server), "what runs there ends"); err != nil {
		return err
	}
	n, err := target.Purge(cmd.Context(), q.Credential, q.Settings.Namespace, cluster)
	if err != nil {
		return err
	}
	return printf(cmd, "%d objects were deleted\n", n)
}

func burstViews(ctx context.Context, c *common) ([]burst.View, error) {
	var views []burst.View
	return views, requestBurst(ctx, c, http.MethodGet, "/v1/burst", nil, &views)
}

// burstTimeout is for requests that wait for the other cluster.
const burstTimeout = 2 * time.Minute

func requestBurst(ctx context.Context, c *common, method, path string, in, out any) error {
	defer busy("waiting for the other cluster")()
	return api.CallWithin(ctx, burstTimeout, c.dirs.Run, method, path, in, out)
}

func burstState(v burst.View) (state, why string) {
	switch {
	case v.Removed:
		return "Removing", v.Broken
	case v.Broken != "":
		return "Unusable", v.Broken
	case v.State.Ready:
		return "Ready", v.Doubt
	case v.State.Reason != "":
		return "NotReady", v.State.Reason
	}
	return "Starting", ""
}

func endsText(ends time.Time, renewed string) string {
	var parts []string
	if !ends.IsZero() {
		parts = append(parts, "ends "+ends.Format(time.DateTime))
	}
	if renewed != "" {
		parts = append(parts, "renewed by "+renewed)
	}
	return strings.Join(parts, ", ")
}
