package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/peer"
)

func newStatus(c *common) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "what is up, what it waits for, peers, virtual nodes, pods at home and away",
		Long:  "Exit code 0: ready; 3: running, not ready yet; 1: not running.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready := false
			err := show(cmd, c, watch, func(out io.Writer, st api.Status) error {
				ready = st.Ready
				if c.forProgram() {
					return c.print(out, st)
				}
				return printStatus(out, st)
			})
			if err == nil && !watch && !ready {
				return &exitError{code: exitNotReady}
			}
			return err
		},
	}
	outputFlag(cmd, c)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "again every second until Ctrl-C")
	return cmd
}

// show prints what the supervisor says of itself; with watch every second, on a screen
// that is cleared unless a program reads it, until the user has seen enough.
func show(cmd *cobra.Command, c *common, watch bool, print func(io.Writer, api.Status) error) error {
	out := cmd.OutOrStdout()
	for {
		st, err := api.Get(cmd.Context(), c.dirs.Run)
		if err != nil {
			return err
		}
		if watch && isTerminal(out) && !c.forProgram() {
			fmt.Fprint(out, "\033[H\033[2J")
		}
		if err := print(out, st); err != nil || !watch || !lifecycle.Pause(cmd.Context(), time.Second) {
			return err
		}
	}
}

func printStatus(out io.Writer, st api.Status) error {
	state := fmt.Sprintf("Ready (after %s, %s after boot)", seconds(st.ReadyAfter), seconds(st.ReadyAfterBoot))
	if !st.Ready {
		state = "not ready: " + st.Waiting
	}
	fmt.Fprintf(out, "%s  %s\nid %s, node %s at %s, rivulet %s, up %s\n\n", st.Name, state,
		st.ID.Short(), st.NodeName, st.NodeAddress, st.Version, time.Since(st.Started).Round(time.Second))
	if err := printStages(out, st.Stages); err != nil {
		return err
	}
	fmt.Fprintln(out, "\n"+configLine(st.Config))
	fmt.Fprintln(out)
	if err := printPeers(out, st.PeerList()); err != nil {
		return err
	}
	if err := printNodes(out, st); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nPODS  %d at home, %d away, %d of tenants here\n", st.Pods.Home, st.Pods.Away, st.Pods.Guests)
	printFootprint(out, st.Footprint, st.Host.MemoryBytes)
	fmt.Fprintf(out, "CLOCK %s\n", st.Clock)
	for _, p := range st.Health {
		fmt.Fprintf(out, "%-7s %s\n", strings.ToUpper(string(p.Severity)), p)
	}
	return nil
}

func printStages(out io.Writer, stages []lifecycle.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STAGE\tSTATE\tREADY AFTER\tAFTER BOOT\tDETAIL")
	for _, s := range stages {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Name, s.State, seconds(s.Took), seconds(s.SinceBoot), s.Detail)
	}
	return w.Flush()
}

func printPeers(out io.Writer, peers []api.Peer) error {
	if len(peers) == 0 {
		_, err := fmt.Fprintln(out, "PEERS  none found yet; another device on this LAN is found by itself")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PEER\tSTATE\tID\tTRUST\tADDRESS\tPODS SEEN AS\tRTT\tDETAIL")
	for _, p := range peers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", dash(p.Name), p.State, p.ID.Short(), dash(p.Trust.How),
			control(p.View), prefix(p.View), rtt(p.RTT), detail(p))
	}
	return w.Flush()
}

func printNodes(out io.Writer, st api.Status) error {
	if len(st.VirtualNodes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VIRTUAL NODE\tREADY\tARCH\tCPU\tMEMORY\tPODS\tDETAIL")
	for _, n := range st.VirtualNodes {
		mem := n.Allocatable.Memory().Value() >> 20
		fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%d Mi\t%d\t%s\n", n.Name, n.Ready, dash(n.Architecture),
			n.Allocatable.Cpu(), mem, n.Pods, n.Reason)
	}
	return w.Flush()
}

func control(p peer.View) string {
	if !p.Control.IsValid() {
		return "-"
	}
	return p.Control.String()
}

func prefix(p peer.View) string {
	if !p.PeerMappedCIDR.IsValid() {
		return "-"
	}
	return p.PeerMappedCIDR.String()
}

func rtt(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.Round(10 * time.Microsecond).String()
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func dash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return s
}
