package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/offload/consumer/move"
)

func newMove(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use: "move", Short: "move data of claims", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("move what? for example: rivulet move volume lab/data home; see: %s --help", cmd.CommandPath())
		},
	}
	cmd.AddCommand(newMoveVolume(c))
	return cmd
}

func newMoveVolume(c *common) *cobra.Command {
	var want move.Request
	cmd := &cobra.Command{
		Use:   "volume NAMESPACE/CLAIM TARGET",
		Short: "move the data of a claim to a peer, or home; pods that use it follow",
		Long: "TARGET is a virtual node (see: rivulet peers), or home, which is this device. The data may be on a worker of this cluster. No pod may use the claim meanwhile: stop it, or evict it with --evict; its owner's next pod waits for the move.\n" +
			"The files are copied, read again on both sides and compared; then the claim is bound to the copy, and the original is removed. Until then the original is unchanged: after a failure the claim is where it was.\n" +
			"A move continues when this command is interrupted, and after a restart of rivulet; the same command shows its progress. Exit code 0: moved; 1: the data are where they were.",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := takes(2, "%[1]s takes a claim and a target, for example: rivulet move volume lab/data home; see: %[2]s --help")(cmd, args); err != nil {
				return err
			}
			ns, claim, ok := strings.Cut(args[0], "/")
			if !ok || ns == "" || claim == "" || strings.Contains(claim, "/") || args[1] == "" {
				return usagef("%q is no NAMESPACE/CLAIM; write for example lab/data; see: %s --help", args[0], cmd.CommandPath())
			}
			want.Namespace, want.Claim, want.To = ns, claim, args[1]
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := json.Marshal(want)
			if err != nil {
				return err
			}
			resp, err := api.Do(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/volumes/move", bytes.NewReader(body))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			err = c.showMove(cmd.OutOrStdout(), resp.Body)
			if cmd.Context().Err() != nil {
				return errors.New("the move goes on; to see how far it is, run the same command again")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&want.Evict, "evict", false, "evict the pods that use the claim, as their disruption budgets allow")
	return withOutput(c, cmd)
}

// showMove prints the progress of a move to its end.
func (c *common) showMove(out io.Writer, lines io.Reader) error {
	forProgram := c.forProgram()
	step, tenth := "", int64(-1)
	for in := json.NewDecoder(lines); ; {
		var p api.Move
		if err := in.Decode(&p); err != nil {
			return fmt.Errorf("rivulet ended in between (%w); the move goes on when it runs again, and the same command shows it", err)
		}
		if forProgram {
			if err := c.print(out, p); err != nil {
				return err
			}
		}
		switch {
		case p.Over && p.Error != "":
			return errors.New(p.Error)
		case forProgram && p.Over:
			return nil
		case forProgram:
			continue
		case p.Over:
			where := "on " + p.To
			if p.To == move.Home {
				where = "at home"
			}
			fmt.Fprintf(out, "the data of %s/%s are %s\n", p.Namespace, p.Claim, where)
			if p.Kept != "" {
				fmt.Fprintf(out, "the old copy stays in volume %s, as its reclaim policy is Retain\n", p.Kept)
			}
			return nil
		}
		if p.Step != step {
			step, tenth = p.Step, -1
			fmt.Fprintln(out, stepWords[p.Step])
		}
		if now := 10 * p.Bytes / max(p.Total, 1); p.Step == move.Copying && now > tenth && p.Bytes > 0 {
			tenth = now
			fmt.Fprintf(out, "  %d of %d MiB\n", p.Bytes>>20, max(p.Total, p.Bytes)>>20)
		}
	}
}

var stepWords = map[string]string{
	"":             "beginning",
	move.Holding:   "waiting until no pod uses it",
	move.Copying:   "copying",
	move.Comparing: "comparing both copies",
	move.Switching: "binding the claim to the copy",
	move.Undoing:   "it did not work; binding the claim to the old data again",
	move.Done:      "done",
}
