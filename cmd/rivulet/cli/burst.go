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
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/burst"
	"rivulet/offload/consumer/drain"
	target "rivulet/offload/target/external"
)

func newBurst(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "burst",
		Short: "send pods to a cluster that runs no Rivulet, with nothing but its kubeconfig",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBurstAdd(c), newBurstCheck(c), newBurstList(c), newBurstStatus(c), newBurstRemove(c))
	return cmd
}

// burstFlags are what add and check know of a target.
type burstFlags struct {
	kubeconfig, context, limits string
	settings                    target.Settings
}

func (f *burstFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "the file that the other cluster's administrator gave you (needed)")
	cmd.Flags().StringVar(&f.context, "context", "", "the context to use, if the file has several")
	cmd.Flags().StringVar(&f.settings.Namespace, "namespace", "", "where you may run pods; default: the context's")
	cmd.Flags().StringVar(&f.limits, "limits", "", "what pods may ask for there in all, like cpu=8,memory=16Gi,pods=40; default: what the namespace's quota allows")
	cmd.Flags().StringVar(&f.settings.Network, "network", "", "none (batch work), auto, stream or udp; default none")
	cmd.Flags().StringVar(&f.settings.Image, "image", "", "the gateway's image, or shell=IMAGE for any with a shell, into which the program is put; default shell=busybox:stable")
	cmd.Flags().StringVar(&f.settings.Security, "pod-security", "", "auto, restricted or as-is: what the namespace demands of pods; default auto")
	cmd.Flags().StringVar(&f.settings.Order, "order", "", "last (after home and peers) or equal (like a peer); default last")
	cmd.Flags().StringVar(&f.settings.Arch, "arch", "", "the nodes' architecture, where they cannot be read; default amd64")
	cmd.Flags().StringToStringVar(&f.settings.Labels, "label", nil, "labels of the virtual node, KEY=VALUE")
}

// read checks the flags and reads the file.
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
	complete := q.Settings // what is not said is not sent: it may be said already
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
	if q.Credential, err = target.ReadCredential(raw, dir, f.context); err != nil {
		return q, fmt.Errorf("%s: %w", f.kubeconfig, err)
	}
	if q.Settings.Namespace == "" {
		q.Settings.Namespace = q.Credential.Namespace
	}
	return q, nil
}

func newBurstAdd(c *common) *cobra.Command {
	var f burstFlags
	var replace bool
	cmd := &cobra.Command{
		Use:   "add NAME --kubeconfig FILE",
		Short: "take in a namespace of another cluster; it becomes the virtual node burst-NAME",
		Long: "The rights of an ordinary user in one namespace are enough. What is missing is told, with the smallest Role that an administrator would have to grant.\n" +
			"The credential is kept encrypted by this device's identity. Files of tokens and certificates that the kubeconfig names stay where they are, and their renewal is followed.\n" +
			"Exit code 0: added; 3: not added, because rights are missing; 1: it does not work.",
		Args: oneBurst,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := f.read(cmd, args[0])
			if err != nil {
				return err
			}
			q.Replace = replace
			var found burst.Added
			if err := askBurst(cmd.Context(), c, http.MethodPost, "/v1/burst", q, &found); err != nil {
				return err
			}
			return printFound(cmd.OutOrStdout(), c, args[0], found)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&replace, "replace", false, "give a target that is there another credential or other settings; what is not said stays. Not needed where the credential is not taken any more")
	outputFlag(cmd, c)
	return cmd
}

func newBurstCheck(c *common) *cobra.Command {
	var f burstFlags
	cmd := &cobra.Command{
		Use:   "check --kubeconfig FILE",
		Short: "look whether pods could be sent there, and change nothing; from any machine",
		Long:  "Exit code 0: they could; 3: rights are missing; 1: it does not work.",
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
	outputFlag(cmd, c)
	return cmd
}

// printFound says what was found; name is empty if nothing was to be added.
func printFound(out io.Writer, c *common, name string, found burst.Added) error {
	if c.forProgram() {
		if err := c.print(out, found); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "server      %s (%s)\nnamespace   %s\n", found.Server, dash(found.Version), found.Namespace)
		if found.User != "" {
			fmt.Fprintf(out, "user        %s\n", found.User)
		}
		if room := roomText(found.Room); room != "" {
			fmt.Fprintf(out, "room        %s\n", room)
		}
		if found.Security != "" {
			fmt.Fprintf(out, "security    %s\n", found.Security)
		}
		if ends := endsText(found.Ends, found.Renewed); ends != "" {
			fmt.Fprintf(out, "credential  %s\n", ends)
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
	cmd := &cobra.Command{
		Use: "list", Short: "the clusters that were added", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, err := burstViews(cmd.Context(), c)
			if err != nil {
				return err
			}
			if c.forProgram() {
				return c.print(cmd.OutOrStdout(), views)
			}
			if len(views) == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "no burst target; add one with: rivulet burst add NAME --kubeconfig FILE")
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			head, more := "NAME\tSTATE\tSERVER\tNAMESPACE\tROOM\tNETWORK\tREASON", ""
			if c.output == "wide" {
				head += "\tVERSION\tLIMITS\tSECURITY\tANSWERS IN"
			}
			fmt.Fprintln(w, head)
			for _, v := range views {
				state, why := burstState(v)
				if c.output == "wide" {
					more = fmt.Sprintf("\t%s\t%s\t%s\t%s", dash(v.State.Version), dash(roomText(v.Limits)), dash(v.State.Security), v.State.RTT.Round(time.Millisecond))
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s%s\n", v.Name, state, v.Server, v.Namespace, dash(roomText(v.State.Room)), v.Network, dash(why), more)
			}
			return w.Flush()
		},
	}
	outputFlag(cmd, c, "wide")
	return cmd
}

func newBurstStatus(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status NAME", Short: "all that is known of one target",
		Long: "Exit code 0: pods can be sent there; 3: they cannot now.",
		Args: oneBurst,
		RunE: func(cmd *cobra.Command, args []string) error {
			views, err := burstViews(cmd.Context(), c)
			if err != nil {
				return err
			}
			for _, v := range views {
				if v.Name != args[0] {
					continue
				}
				if err := printBurst(cmd.OutOrStdout(), c, v); err != nil {
					return err
				}
				if state, _ := burstState(v); state != "Ready" {
					return &exitError{code: exitNotReady}
				}
				return nil
			}
			return fmt.Errorf("there is no burst target %.60q; see: rivulet burst list", args[0])
		},
	}
	outputFlag(cmd, c)
	return cmd
}

func printBurst(out io.Writer, c *common, v burst.View) error {
	if c.forProgram() {
		return c.print(out, v)
	}
	state, why := burstState(v)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", key, value)
		}
	}
	row("state", state)
	row("reason", why)
	row("node", "burst-"+v.Name)
	row("server", strings.TrimSpace(v.Server+" "+v.State.Version))
	row("namespace", v.Namespace)
	row("room", roomText(v.State.Room))
	row("limits", roomText(v.Limits))
	row("security", v.State.Security)
	row("order", v.Order)
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
	return w.Flush()
}

func newBurstRemove(c *common) *cobra.Command {
	var f burstFlags
	var force, purge bool
	var cluster string
	cmd := &cobra.Command{
		Use:   "remove NAME [--force] | remove --kubeconfig FILE --purge [--cluster ID]",
		Short: "take a target out, and delete all that is ours there",
		Long: "Pods that ran there are replaced by their owners where there is room. A target that does not answer is cleaned up when it does, also after a restart;\n" +
			"with --force it is forgotten. With --kubeconfig and --purge, from any machine, what a home has left there is deleted without asking that home.",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case purge && len(args) == 0:
				return purgeBurst(cmd, &f, cluster)
			case purge || f.kubeconfig != "" || cluster != "":
				return usagef("--purge goes with --kubeconfig FILE and without a name; see: %s --help", cmd.CommandPath())
			case len(args) != 1:
				return oneBurst(cmd, args)
			}
			if err := confirm(cmd, "burst target "+args[0]+" is taken out, and all that this cluster has there is deleted"+c.podsAt(cmd.Context(), "burst-"+args[0])); err != nil {
				return err
			}
			var gone burst.Removed
			path := "/v1/burst/" + url.PathEscape(args[0])
			if force {
				path += "?force"
			}
			if err := askBurst(cmd.Context(), c, http.MethodDelete, path, nil, &gone); err != nil {
				return err
			}
			return printRemoved(cmd.OutOrStdout(), c, args[0], gone)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "forget a target that does not answer, and what is left there")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "with --purge: how to reach it")
	cmd.Flags().StringVar(&f.context, "context", "", "with --purge: the context to use")
	cmd.Flags().StringVar(&f.settings.Namespace, "namespace", "", "with --purge: where; default: the context's")
	cmd.Flags().BoolVar(&purge, "purge", false, "delete what a home has left in the namespace, without that home")
	cmd.Flags().StringVar(&cluster, "cluster", "", "with --purge: of which home, if there are several")
	yesFlag(cmd)
	outputFlag(cmd, c)
	return cmd
}

// podsAt tells in sentences which pods end on a target; empty while that is not known.
func (c *common) podsAt(ctx context.Context, name string) string {
	client, nodes, err := virtualNodes(ctx, c, name)
	if err != nil {
		return ""
	}
	var names []string
	for i := range nodes {
		names = append(names, nodes[i].Name)
	}
	pods, _ := drain.Pods(ctx, client, names)
	return drain.Ends(pods)
}

func printRemoved(out io.Writer, c *common, name string, gone burst.Removed) error {
	if c.forProgram() {
		return c.print(out, gone)
	}
	switch {
	case gone.Waiting == "":
		fmt.Fprintf(out, "%s is removed; %d objects were deleted there\n", name, gone.Gone)
	case gone.Forgotten:
		fmt.Fprintf(out, "%s is forgotten. It was not cleaned up: %s\nLater, from any machine: rivulet burst remove --kubeconfig FILE --namespace %s --purge --cluster %s\n", name, gone.Waiting, gone.Namespace, gone.Cluster)
	default:
		fmt.Fprintf(out, "%s is taken out. It cannot be cleaned up now: %s\nThat is tried on; see: rivulet burst list; or, to give up: rivulet burst remove %s --force\n", name, gone.Waiting, name)
	}
	return nil
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
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "nothing of any Rivulet home is in namespace %s\n", q.Settings.Namespace)
			return err
		case len(homes) > 1:
			return fmt.Errorf("several homes have something in namespace %s; say which: --cluster %s", q.Settings.Namespace, strings.Join(homes, " or --cluster "))
		}
		cluster = homes[0]
	}
	if err := confirm(cmd, fmt.Sprintf("all that home %s has in namespace %s of %s is deleted, what runs there with it", cluster, q.Settings.Namespace, q.Credential.Server)); err != nil {
		return err
	}
	n, err := target.Purge(cmd.Context(), q.Credential, q.Settings.Namespace, cluster)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%d objects were deleted\n", n)
	return nil
}

func burstViews(ctx context.Context, c *common) ([]burst.View, error) {
	var views []burst.View
	return views, askBurst(ctx, c, http.MethodGet, "/v1/burst", nil, &views)
}

// burstTimeout is for what waits for the other cluster.
const burstTimeout = 2 * time.Minute

func askBurst(ctx context.Context, c *common, method, path string, in, out any) error {
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

func oneBurst(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes one name; see: %s --help", cmd.Name(), cmd.CommandPath())
	}
	return nil
}
