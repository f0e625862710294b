package cli

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"rsc.io/qr"

	"rivulet/appliance/api"
	"rivulet/fabric/trust"
)

func newInvite(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "invite",
		Short: "make a code with which one other cluster becomes a peer, from anywhere, within ten minutes",
		Long: "Prints a code, as text, as a link and as a QR code. On the other cluster: rivulet peer --invite CODE\n" +
			"It is valid once. rivulet invite list shows all invites, rivulet invite revoke ID ends one.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var i api.Invited
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/invites", api.Word{}, &i); err != nil {
				return err
			}
			return c.printInvited(cmd.OutOrStdout(), i, "on the other cluster, until %s, once:\n\n  rivulet peer --invite %s\n\nas a link: %s\nto take it back: rivulet invite revoke %s\n",
				i.Expires.Local().Format(time.TimeOnly), i.Code, i.URL, i.ID)
		},
	}
	list := withOutput(c, &cobra.Command{
		Use:   "list",
		Short: "list the invites of the last day with their results",
		Args:  noArgs,
		RunE: get(c, "/v1/invites", func(out io.Writer, l api.Invites, wide bool) error {
			return printInvites(out, "no invite was made in the last day", l.Of(false), wide)
		}),
	}, "wide")
	cmd.AddCommand(list, newRevoke(c, "invite"))
	return withOutput(c, cmd)
}

// printInvited prints a new invite or token: for a program its fields, else the text, on a terminal with its QR code.
func (c *common) printInvited(out io.Writer, i api.Invited, format string, args ...any) error {
	if c.forProgram() {
		return c.print(out, i)
	}
	if drawn, err := drawQR(i.URL); err == nil && isTerminal(out) {
		fmt.Fprintln(raw(out), drawn)
	}
	_, err := fmt.Fprintf(out, format, args...)
	return err
}

// newRevoke is the command that revokes an invite or a token; what says which.
func newRevoke(c *common, what string) *cobra.Command {
	return &cobra.Command{
		Use:   "revoke ID",
		Short: "revoke one " + what + "; what it has made stays",
		Args:  takes(1, "revoke takes the ID of one "+what+"; see: rivulet "+what+" list, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var i trust.Invite
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/invites/revoke", api.Word{Invite: args[0]}, &i); err != nil {
				return err
			}
			return printf(cmd, "%s %s is revoked%s\n", what, args[0], made(i))
		},
	}
}

// made describes what stays of a revoked invite, and how to end it.
func made(i trust.Invite) string {
	switch {
	case i.UsedBy == "" || i.Spent:
		return ""
	case i.Join:
		return "; the node that has used it stays: rivulet nodes remove NAME"
	}
	return "; the peer that has used it stays: rivulet unpeer " + i.UsedBy.Short()
}

func printInvites(out io.Writer, none string, l api.Invites, wide bool) error {
	form := time.TimeOnly
	if wide {
		form = time.DateTime
	}
	return table(out, none, "ID\tSTATE\tMADE\tEXPIRES\tUSED BY", l.Invites, func(i trust.Invite) []any {
		by := i.UsedBy.Short()
		if wide {
			by = string(i.UsedBy)
		}
		return []any{i.ID, i.State(l.Now), i.Made.Local().Format(form), i.Expires.Local().Format(form), dash(by)}
	})
}

// drawQR draws the text for a terminal, two modules per character, dark on light with any colours of the terminal; with
// NO_COLOR in the terminal's own.
func drawQR(text string) (string, error) {
	// In capitals: a QR code has a smaller alphabet for them.
	code, err := qr.Encode(strings.ToUpper(text), qr.L)
	if err != nil {
		return "", err
	}
	const quiet = 2
	dark := func(x, y int) bool { return code.Black(x, y) } // outside it is light
	on, off := "\x1b[30;107m", "\x1b[0m"
	if os.Getenv("NO_COLOR") != "" {
		on, off = "", ""
	}
	var b strings.Builder
	for y := -quiet; y < code.Size+quiet; y += 2 {
		b.WriteString(on)
		for x := -quiet; x < code.Size+quiet; x++ {
			b.WriteRune([]rune{' ', '▄', '▀', '█'}[bit(dark(x, y))<<1|bit(dark(x, y+1))])
		}
		b.WriteString(off + "\n")
	}
	return b.String(), nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
