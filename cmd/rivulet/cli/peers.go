package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
)

func newPeers(c *common) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "list all clusters found, with trust and state",
		Long:  "To find out why one does not work: rivulet doctor peer NAME. Every column: rivulet docs peers.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, c, watch, func(out io.Writer, st api.Status) error {
				switch {
				case c.forProgram():
					return c.print(out, st.PeerList())
				case c.output == "wide":
					return printWide(out, st.PeerList(), time.Now())
				}
				return printPeers(out, st.PeerList())
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "again every second until Ctrl-C")
	return withOutput(c, cmd, "wide")
}

func printWide(out io.Writer, peers []api.Peer, now time.Time) error {
	const head = "PEER\tSTATE\tFOR\tID\tTRUST\tROLES\tSINCE\tFOUND BY\tADDRESS\tPATH\tENDPOINT\tRTT\tMTU\tHANDSHAKE\tRECEIVED\tSENT\tSEEN AS\tSEES US AS\tOPENED\tVERSION\tKUBERNETES\tDETAIL"
	return table(out, noPeers, head, peers, func(p api.Peer) []any {
		path, endpoint, mtu, shook, received, sent := "-", "-", "-", "-", "-", "-"
		if p.Way != nil {
			path, received, sent = way(p.Way, peers), size(p.Way.Received), size(p.Way.Sent)
			endpoint = valid(p.Way.Endpoint)
			if p.Way.MTU > 0 {
				mtu = fmt.Sprint(p.Way.MTU)
			}
			shook = since(now, p.Way.LastHandshake)
		}
		return []any{dash(p.Name), p.State, since(now, p.Since), p.ID.Short(), dash(p.Trust.How), roles(p.View), day(p.Trust.At), dash(join(p.Found)), valid(p.Control),
			path, endpoint, rtt(p.RTT), mtu, shook, received, sent, valid(p.PeerMappedCIDR), valid(p.LocalMappedCIDR), dash(join(p.Opened)), dash(p.Version), dash(p.KubeVersion), detail(p)}
	})
}

// detail is the reason for a peer's state, whether it lends nothing, and whether this cluster sends it no pods.
func detail(p api.Peer) string {
	var out []string
	if p.Reason != "" {
		out = append(out, p.Reason)
	}
	if p.LendsNothing {
		out = append(out, "it lends nothing to this cluster")
	}
	if p.Unchosen {
		out = append(out, "gets no new pods: rivulet config explain virtualNodes")
	}
	if len(p.Cordoned) > 0 {
		out = append(out, "cordoned, takes no new pods: rivulet uncordon "+strings.Join(p.Cordoned, ", rivulet uncordon "))
	}
	if len(p.Relayed) > 0 {
		out = append(out, "pods there reach those on "+strings.Join(p.Relayed, ", ")+" through this cluster, directly once they are peers")
	}
	return strings.Join(out, "; ")
}

// way is the name of the path, with the relay of a relayed one.
func way(w *api.Way, peers []api.Peer) string {
	if w.Via == "" {
		return dash(w.Path)
	}
	for _, p := range peers {
		if string(p.ID) == w.Via {
			return w.Path + " via " + p.Name
		}
	}
	return w.Path + " via " + peer.ID(w.Via).Short()
}

func join(words []string) string { return strings.Join(words, ",") }

func day(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04")
}

// since is the time since an event, in one unit.
func since(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := now.Sub(t); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func size(n uint64) string {
	unit := 0
	f := float64(n)
	for f >= 1000 && unit < 4 {
		f /= 1000
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %cB", f, " kMGT"[unit])
}
