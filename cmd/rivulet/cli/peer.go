package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/operate"
	"rivulet/fabric/peer"
)

func newPeer(c *common) *cobra.Command {
	var invite string
	var consume, provide string
	var price int
	var labels []string
	cmd := &cobra.Command{
		Use:   "peer NAME|ADDRESS | peer --invite CODE | peer NAME --consume=on|off --provide=on|off --price=N --label=KEY=VALUE",
		Short: "make another cluster a peer, or set what is borrowed from it and lent to it, its price and labels",
		Long: "Needed only without automatic trust: it overrides trust.mode and revokes a rivulet deny or unpeer.\n" +
			"NAME is one of rivulet peers, or the beginning of an ID; ADDRESS is a device's, with :PORT if it is not 7442.\n" +
			"Exit code 0: it is a peer; 3: approved here, but the other side has to approve as well; 1: failed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			word := api.Word{Invite: invite}
			var err error
			if word.Consume, err = onOff("--consume", consume); err == nil {
				word.Provide, err = onOff("--provide", provide)
			}
			if err == nil {
				word.Labels, err = labelChanges("--label", labels)
			}
			if cmd.Flags().Changed("price") {
				word.Price = &price
			}
			switch settings := !word.Empty(); {
			case err != nil:
				return err
			case invite != "" && (len(args) > 0 || settings):
				return usagef("--invite says who it is; give nothing else; see: %s --help", cmd.CommandPath())
			case invite != "":
				if word.Invite, err = secretWord(cmd, invite); err != nil {
					return err
				}
				return say(cmd, c, "/v1/invites/accept", word, met)
			case len(args) != 1:
				return usagef("peer takes one name or address; see: rivulet peers, and: %s --help", cmd.CommandPath())
			case settings:
				word.Peer = args[0]
				off := func(on *bool) bool { return on != nil && !*on }
				e, err := c.cluster().Ending(cmd.Context(), args[0], off(word.Consume), off(word.Provide))
				if errors.Is(err, api.ErrNotRunning) {
					return err
				}
				if what := e.String(); what != "" {
					if err := confirm(cmd, "switch that off with "+e.Peer, what); err != nil {
						return err
					}
				}
				return say(cmd, c, "/v1/peers/settings", word, switched)
			}
			word.Peer = args[0]
			return say(cmd, c, "/v1/peers/approve", word, met)
		},
	}
	yesFlag(cmd)
	cmd.Flags().StringVar(&invite, "invite", "", "the other cluster's invite: its code or URL, or - to read it from standard input")
	cmd.Flags().StringVar(&consume, "consume", "", "on or off: whether pods of this cluster may run on the peer")
	cmd.Flags().StringVar(&provide, "provide", "", "on or off: whether pods of the peer may run here")
	cmd.Flags().IntVar(&price, "price", 0, "0 (cheapest) to 9; namespaces that prefer the cheapest fill peers with a low price first")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "KEY=VALUE sets a label of the peer's virtual nodes, KEY- removes it; repeatable")
	return withOutput(c, cmd)
}

func newApprove(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve NAME",
		Short: "approve a cluster that waits (state Waiting in rivulet peers)",
		Long:  "Exit code 0: it is a peer; 3: approved here, but the other side has to approve as well; 1: failed.",
		Args:  onePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			return say(cmd, c, "/v1/peers/approve", api.Word{Peer: args[0]}, met)
		},
	}
	return withOutput(c, cmd)
}

func newDeny(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deny NAME",
		Short: "deny a cluster permanently; a peer is cut off at once",
		Long:  "The denial survives restarts and is shown by rivulet peers; rivulet peer NAME revokes it.",
		Args:  onePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := c.cluster().Ending(cmd.Context(), args[0], true, true)
			if errors.Is(err, api.ErrNotRunning) {
				return err
			}
			if e.Peer != "" { // its pods are not waited for: it ends at once
				if err := confirm(cmd, "deny "+e.Peer, "it is a peer, and is cut off at once"+e.String()); err != nil {
					return err
				}
			}
			return say(cmd, c, "/v1/peers/deny", api.Word{Peer: args[0]}, func(out io.Writer, v peer.View) error {
				_, err := fmt.Fprintf(out, "%s is denied; rivulet peer %s takes that back\n", operate.NameOf(v), operate.NameOf(v))
				return err
			})
		},
	}
	yesFlag(cmd)
	return withOutput(c, cmd)
}

func newUnpeer(c *common) *cobra.Command {
	var word api.Word
	var lan bool
	cmd := &cobra.Command{
		Use:   "unpeer NAME | unpeer --lan",
		Short: "end the peering with a cluster: tunnel, virtual node, and pods that run on either side for the other",
		Long: "Owners replace this cluster's pods there; the other cluster's pods here end. The command lists them and requires confirmation.\n" +
			"Pods there without an owner, data of this cluster's claims there, and data of the other's claims here would be lost: if there are any, nothing is done without --force.\n" +
			"The peering does not come back by itself: rivulet peer NAME restores it.\n" +
			"--lan removes all peers that are trusted by lan alone and have no pods, there or here; with --force those with pods, too. While trust.mode is lan they may come back.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if lan {
				if len(args) > 0 || word.Forget {
					return usagef("--lan names all of them; give nothing else but --force; see: %s --help", cmd.CommandPath())
				}
				return forgetLAN(cmd, c, word)
			}
			if err := onePeer(cmd, args); err != nil {
				return err
			}
			word.Peer = args[0]
			e, err := c.cluster().Ending(cmd.Context(), args[0], true, true)
			if err == nil {
				err = e.Lost()
			}
			if err != nil && (!word.Force || errors.Is(err, api.ErrNotRunning)) {
				return err
			}
			if e.Peer != "" {
				if err := confirm(cmd, "end the peering with "+e.Peer, e.String()); err != nil {
					return err
				}
			}
			return say(cmd, c, "/v1/peers/unpeer", word, func(out io.Writer, v peer.View) error {
				fmt.Fprintf(out, "%s is no peer any more\n", operate.NameOf(v))
				return notice(out, v)
			})
		},
	}
	yesFlag(cmd)
	cmd.Flags().BoolVar(&word.Force, "force", false, "even if the peer cannot be notified, or pods or data are lost")
	cmd.Flags().BoolVar(&lan, "lan", false, "all peers that are trusted by lan alone")
	cmd.Flags().BoolVar(&word.Forget, "forget", false, "do not store the denial: it may come back by itself")
	return withOutput(c, cmd)
}

// forgetLAN ends the peerings that are trusted by the LAN alone.
func forgetLAN(cmd *cobra.Command, c *common, w api.Word) error {
	what := "end the peerings with all clusters that are trusted by lan alone"
	if !w.Force {
		what += " and that nothing runs on or for"
	}
	st, err := api.Get(cmd.Context(), c.dirs.Run)
	if err != nil {
		return err
	}
	var names []string
	for _, p := range operate.Peers(st.Peers) {
		if p.Trust.How == peer.TrustLAN {
			names = append(names, operate.NameOf(p))
		}
	}
	if len(names) > 0 {
		if err := confirm(cmd, what, "trusted by lan alone: "+strings.Join(names, ", ")); err != nil {
			return err
		}
	}
	var done api.Forgotten
	if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/peers/forget-lan", w, &done); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if c.forProgram() {
		return c.print(out, done)
	}
	if len(done.Gone) == 0 {
		_, err = fmt.Fprintln(out, "no peering was ended")
	} else {
		_, err = fmt.Fprintf(out, "%d peers are none any more: %s\n", len(done.Gone), strings.Join(done.Gone, ", "))
	}
	if len(done.Stay) > 0 {
		_, err = fmt.Fprintf(out, "%d stay, for something runs on them or for them: %s; add --force to end these, too\n", len(done.Stay), strings.Join(done.Stay, ", "))
	}
	return err
}

var onePeer = takes(1, "%[1]s takes one name; see: rivulet peers, and: %[2]s --help")

func onOff(flag, v string) (*bool, error) {
	switch v {
	case "":
		return nil, nil
	case "on", "off":
		on := v == "on"
		return &on, nil
	}
	return nil, usagef("%s is %q; write on or off", flag, v)
}

// labelChanges reads labels as kubectl label does: KEY=VALUE sets one, KEY- removes it.
func labelChanges(flag string, words []string) (map[string]*string, error) {
	out := map[string]*string{}
	for _, word := range words {
		key, value, set := strings.Cut(word, "=")
		switch {
		case set:
			out[key] = &value
		case strings.HasSuffix(word, "-"):
			out[strings.TrimSuffix(word, "-")] = nil
		default:
			return nil, usagef("%s is %q; write KEY=VALUE, or KEY- to remove it; see: rivulet peer --help", flag, word)
		}
	}
	return out, nil
}

// say sends an operator decision to the supervisor and prints the result.
func say(cmd *cobra.Command, c *common, path string, w api.Word, print func(io.Writer, peer.View) error) error {
	var v peer.View
	end := busy("waiting for the other cluster")
	err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, path, w, &v)
	end()
	if err != nil {
		return err
	}
	if !c.forProgram() {
		return print(cmd.OutOrStdout(), v)
	}
	if err := c.print(cmd.OutOrStdout(), v); err != nil {
		return err
	}
	return print(io.Discard, v)
}

// met prints whether a cluster is a peer now.
func met(out io.Writer, v peer.View) error {
	switch {
	case !v.State.Apart():
		fmt.Fprintf(out, "%s (%s) is a peer\n", operate.NameOf(v), v.ID.Short())
		return notice(out, v)
	case v.State == peer.Refused:
		return fmt.Errorf("your word is kept, but %s is no peer yet: %s", operate.NameOf(v), v.Reason)
	}
	fmt.Fprintf(out, "your word is kept; %s (%s) is %s: %s\n", operate.NameOf(v), v.ID.Short(), strings.ToLower(string(v.State)), dash(v.Reason))
	return &exitError{code: exitNotReady}
}

func notice(out io.Writer, v peer.View) error {
	if v.Notice == "" {
		return nil
	}
	_, err := fmt.Fprintln(out, v.Notice)
	return err
}

func switched(out io.Writer, v peer.View) error {
	onOff := map[bool]string{true: "off", false: "on"}
	more := ""
	if v.Price > 0 {
		more = fmt.Sprintf(", price %d", v.Price)
	}
	for _, key := range slices.Sorted(maps.Keys(v.Labels)) {
		more += ", " + key + "=" + v.Labels[key]
	}
	_, err := fmt.Fprintf(out, "%s: consume %s, provide %s%s\n", operate.NameOf(v), onOff[v.Roles.NoConsume], onOff[v.Roles.NoProvide], more)
	return err
}

// sayTold adds the notified peers to a report.
func sayTold(r *cleanup.Report, told []string) {
	if len(told) > 0 {
		r.Removed = append(r.Removed, "the peering with "+strings.Join(told, ", ")+"; they were told")
	}
}

// goodbye notifies the peers that this cluster ends its peerings. A failure does not prevent the removal.
func goodbye(ctx context.Context, c *common) (told []string) {
	var left api.Left
	defer busy("telling the peers")()
	if api.Call(ctx, c.dirs.Run, http.MethodPost, "/v1/leave", struct{}{}, &left) != nil {
		return nil
	}
	return left.Told
}
