package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/doctor/peercheck"
)

func newDoctorPeer(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peer NAME",
		Short: "find the layer that fails on the way to a peer, from discovery to its API server",
		Long:  "NAME is a peer's name, its ID or the beginning of its ID. Exit code 0: nothing fails; 1: a layer fails; 2: bad flags. Every layer: rivulet docs peers.",
		Args:  takes(1, "doctor peer takes the name of one peer; see: rivulet peers, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			end := busy("asking " + args[0])
			resp, err := api.Do(cmd.Context(), c.dirs.Run, http.MethodGet, "/v1/doctor/peer?name="+url.QueryEscape(args[0]), nil)
			end()
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var rep peercheck.Report
			if err := json.NewDecoder(resp.Body).Decode(&rep); err != nil {
				return fmt.Errorf("the supervisor's answer is unreadable: %w; are the command and the running rivulet of the same version?", err)
			}
			if c.forProgram() {
				err = c.print(cmd.OutOrStdout(), rep)
			} else {
				printLayers(cmd.OutOrStdout(), rep)
			}
			if _, failed := rep.Failed(); err == nil && failed {
				err = &exitError{code: exitFailed}
			}
			return err
		},
	}
	return withOutput(c, cmd)
}

func printLayers(out io.Writer, rep peercheck.Report) {
	fmt.Fprintf(out, "%s (%s)\n\n", dash(rep.Peer), rep.ID.Short())
	for _, l := range rep.Layers {
		fmt.Fprintf(out, "%-5s %-11s %s: %s\n", strings.ToUpper(string(l.Status)), l.Name, l.Title, oneLine(l.Text))
		if l.Cure != "" && (l.Status == doctor.Fail || l.Status == doctor.Warn) {
			fmt.Fprintf(out, "      %-11s → %s\n", "", oneLine(l.Cure))
		}
	}
	if l, failed := rep.Failed(); failed {
		fmt.Fprintf(out, "\nIt breaks at %s. The layers below it in this list were not checked.\n", l.Name)
	} else {
		fmt.Fprintln(out, "\nThe whole way works.")
	}
}
