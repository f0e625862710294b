package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/fleet"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer"
)

func newStatus(c *common) *cobra.Command {
	var watch, all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show readiness, peers, capacity and pods at home and away, problems with cures",
		Long:  "--fleet shows the devices of this group (trust by a group's secret) that allow it, one on each line, the worst first: rivulet docs fleet.\nOf the stages, those that are not ready are shown; -o wide shows all, Rivulet's own usage, and more about peers.\nExit code 0: ready; 3: running, not ready yet; 1: not running.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				return showEach(cmd, c, watch, fleetEvery, getFleet(c), func(out io.Writer, a fleet.Answer) error {
					if c.forProgram() {
						return c.print(out, a)
					}
					return printFleet(out, a, c.output == "wide", time.Now())
				})
			}
			ready := false
			err := show(cmd, c, watch, func(out io.Writer, st api.Status) error {
				ready = st.Ready
				if c.forProgram() {
					return c.print(out, st)
				}
				return printStatus(out, st, c.output == "wide")
			})
			if err == nil && !watch && !ready {
				return &exitError{code: exitNotReady}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "fleet", false, "the devices of the group on one page, the worst first")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "again every second (--fleet: 5 s) until Ctrl-C")
	return withOutput(c, cmd, "wide")
}

// show prints the supervisor's status; with watch every second, on a screen that is cleared unless a program reads it,
// until the user ends it.
func show(cmd *cobra.Command, c *common, watch bool, print func(io.Writer, api.Status) error) error {
	get := func(ctx context.Context) (api.Status, error) { return api.Get(ctx, c.dirs.Run) }
	return showEach(cmd, c, watch, time.Second, get, print)
}

// showEach is show for any answer. What is watched may restart: that it does not run is shown then, and it goes on.
func showEach[T any](cmd *cobra.Command, c *common, watch bool, every time.Duration, get func(context.Context) (T, error), print func(io.Writer, T) error) error {
	out := cmd.OutOrStdout()
	var since time.Time // of its silence
	answered := false
	for {
		st, err := get(cmd.Context())
		if watch && cmd.Context().Err() != nil { // that is how it ends
			return nil //nolint:nilerr // of its own end
		}
		answered = answered || err == nil
		switch {
		case err != nil && (!watch || !answered && !errors.Is(err, api.ErrNotRunning)):
			return err
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		if watch && isTerminal(out) && !c.forProgram() {
			fmt.Fprint(raw(out), "\033[H\033[2J")
		}
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "no answer for %s: %s\n", time.Since(since).Round(time.Second), oneLine(err.Error()))
		} else if err := print(out, st); err != nil || !watch {
			return err
		}
		if !changes.Wait(cmd.Context(), every) {
			return nil
		}
	}
}

// printStatus prints what fits a screen of 80x24 without problems; with wide all of it.
func printStatus(out io.Writer, st api.Status, wide bool) error {
	fmt.Fprintf(out, "%s  %s\nid %s, node %s at %s, rivulet %s, up %s\n\n", st.Name, verdict(st), st.ID.Short(), st.NodeName, st.NodeAddress,
		st.Version, time.Since(st.Started).Round(time.Second))
	stages := st.Stages
	if !wide {
		stages = slices.DeleteFunc(slices.Clone(stages), func(s lifecycle.Status) bool { return s.State == lifecycle.Ready })
	}
	if err := printStages(out, stages); err != nil {
		return err
	}
	print := printBrief
	if wide {
		print = printPeers
	}
	printMembers(out, st)
	if st.Member == nil { // a worker has no peers
		if err := print(out, st.PeerList()); err != nil {
			return err
		}
	}
	for _, b := range st.Brokers {
		fmt.Fprintf(out, "BROKER  %s: %s\n", b.Address, brokerState(b))
	}
	if err := printPlaces(out, st); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nPODS    %s\n", st.Pods)
	printServices(out, st.Services)
	fmt.Fprintln(out, configLine(st.Config))
	if wide {
		fmt.Fprintf(out, "READY   after %s, %s after boot\n", seconds(st.ReadyAfter), seconds(st.ReadyAfterBoot))
		printFootprint(out, st.Footprint, st.Host.MemoryBytes)
		fmt.Fprintf(out, "CLOCK   %s\n", st.Clock)
	}
	for _, p := range st.Health {
		fmt.Fprintf(out, "%-7s %s\n", strings.ToUpper(string(p.Severity)), p)
	}
	return nil
}

// printMembers prints the other devices of this cluster, a line each.
func printMembers(out io.Writer, st api.Status) {
	for _, n := range st.Nodes {
		what := "worker " + dash(n.Node)
		if n.Standby {
			what = "standby " + dash(n.Node)
		}
		if st.Member != nil {
			what = fmt.Sprintf("server of %s, %s", st.Member.Cluster, st.Member.Address)
		}
		fmt.Fprintf(out, "NODE    %s: %s\n", what, strings.Join(slices.DeleteFunc([]string{string(n.State), n.Path, trip(n.RTT), n.Reason}, func(s string) bool { return s == "" }), ", "))
	}
	if st.Member != nil && !st.Member.Removed {
		fmt.Fprintf(out, "WORKER  this device runs pods of cluster %s; peers, users, backups and all else are its server's: type those commands there\n", st.Member.Cluster)
	}
	if len(st.Nodes) > 0 || st.Member != nil {
		fmt.Fprintln(out)
	}
}

// trip is a round trip for a list, empty if unknown.
func trip(rtt time.Duration) string {
	if rtt == 0 {
		return ""
	}
	return rtt.Round(10 * time.Microsecond).String()
}

// verdict is whether pods can run, and the number of problems.
func verdict(st api.Status) string {
	if !st.Ready {
		return "not ready: " + st.Waiting
	}
	count := map[health.Severity]int{}
	for _, p := range st.Health {
		count[p.Severity]++
	}
	text := "Ready"
	if pressure := st.Room[st.NodeName].Pressure; len(pressure) > 0 {
		text = "takes no new pods: " + strings.Join(pressure, ", ")
	}
	for _, s := range []health.Severity{health.Error, health.Warning} {
		if n := count[s]; n == 1 {
			text += fmt.Sprintf(", 1 %s", s)
		} else if n > 1 {
			text += fmt.Sprintf(", %d %ss", n, s)
		}
	}
	return text
}

func printStages(out io.Writer, stages []lifecycle.Status) error {
	if len(stages) == 0 {
		return nil
	}
	defer fmt.Fprintln(out)
	return table(out, "", "STAGE\tSTATE\tREADY AFTER\tAFTER BOOT\tDETAIL", stages, func(s lifecycle.Status) []any {
		return []any{s.Name, s.State, seconds(s.Took), seconds(s.SinceBoot), s.Detail}
	})
}

const noPeers = "PEERS  none found yet; another device on this LAN is found by itself"

// printBrief prints the part about peers that fits a screen.
func printBrief(out io.Writer, peers []api.Peer) error {
	return table(out, noPeers, "PEER\tSTATE\tTRUST\tROLES\tPATH\tRTT\tDETAIL", peers, func(p api.Peer) []any {
		path := "-"
		if p.Way != nil {
			path = way(p.Way, peers)
		}
		return []any{dash(p.Name), p.State, dash(p.Trust.How), roles(p.View), path, rtt(p.RTT), detail(p)}
	})
}

func printPeers(out io.Writer, peers []api.Peer) error {
	return table(out, noPeers, "PEER\tSTATE\tID\tTRUST\tROLES\tADDRESS\tPODS SEEN AS\tRTT\tDETAIL", peers, func(p api.Peer) []any {
		return []any{dash(p.Name), p.State, p.ID.Short(), dash(p.Trust.How), roles(p.View), valid(p.Control), valid(p.PeerMappedCIDR), rtt(p.RTT), detail(p)}
	})
}

// roles are the directions that are on by this cluster's decision.
func roles(v peer.View) string {
	switch {
	case v.State.Apart():
		return "-"
	case v.Roles.NoConsume && v.Roles.NoProvide:
		return "none"
	case v.Roles.NoConsume:
		return "provide"
	case v.Roles.NoProvide:
		return "consume"
	}
	return "both"
}

// printPlaces prints where pods can run, and the free capacity there.
func printPlaces(out io.Writer, st api.Status) error {
	home, known := st.Room[st.NodeName]
	if !known && len(st.VirtualNodes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	nodes := st.VirtualNodes
	if known { // home, before them: this device, and a line for each worker
		workers := st.Workers()
		own := make([]consumer.VirtualNode, 1+len(workers))
		for i, name := range workers {
			own[1+i] = consumer.VirtualNode{Target: name}
		}
		nodes = append(own, nodes...)
	}
	return table(out, "", "PLACE\tREADY\tARCH\tCPU LEFT\tMEMORY LEFT\tPODS\tDETAIL", nodes, func(n consumer.VirtualNode) []any {
		if n.Name == "" && n.Target != "" {
			r := st.Room[n.Target]
			return []any{"home " + n.Target, len(r.Pressure) == 0 && connected(st.Nodes, n.Target), dash(r.Architecture), left(r.Allocatable, r.Requested), r.Pods, strings.Join(r.Pressure, " ")}
		}
		if n.Name == "" {
			return []any{"home", st.Ready && len(home.Pressure) == 0, dash(home.Architecture), left(home.Allocatable, home.Requested), st.Pods.Home,
				strings.Join(append(slices.Clone(home.Pressure), tenantsHere(st.Pods)), " ")}
		}
		return []any{n.Name, n.Ready, dash(n.Architecture), left(n.Allocatable, st.Room[n.Name].Requested), n.Pods, notReady(n, time.Now())}
	})
}

// connected reports whether a worker is reached by the tunnel; those that are not listed are.
func connected(nodes []api.ClusterNode, name string) bool {
	i := slices.IndexFunc(nodes, func(n api.ClusterNode) bool { return n.Node == name })
	return i < 0 || nodes[i].State == peer.Connected
}

func tenantsHere(n api.Pods) string {
	if n.Tenants == 0 {
		return ""
	}
	return fmt.Sprintf("and %d of tenants", n.Tenants)
}

// notReady is why a virtual node is not ready, and for how long its target has been silent.
func notReady(n consumer.VirtualNode, now time.Time) string {
	if n.Heard.IsZero() {
		return n.Reason
	}
	return fmt.Sprintf("silent for %s: %s", since(now, n.Heard), n.Reason)
}

// left is the free CPU and memory, by requests, and the total.
func left(there, asked corev1.ResourceList) string {
	part := func(name corev1.ResourceName, unit float64, suffix string) string {
		all, used := there[name], asked[name]
		free := max(0, all.AsApproximateFloat64()-used.AsApproximateFloat64())
		return fmt.Sprintf("%.1f of %.1f%s", free/unit, all.AsApproximateFloat64()/unit, suffix)
	}
	return part(corev1.ResourceCPU, 1, "") + "\t" + part(corev1.ResourceMemory, 1<<30, " Gi")
}

// valid is an address, or a prefix, if there is one.
func valid(a interface {
	fmt.Stringer
	IsValid() bool
}) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
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
