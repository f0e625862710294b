package cli

import (
	"net/http"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
)

func newRotateKey(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate-key",
		Short: "change the key of the tunnels now; this happens automatically every 30 days",
		Long:  "Peers are notified first; open connections pause for a second or two. The cluster's identity does not change.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			end := busy("telling the peers")
			err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/keys/rotate", api.Word{}, nil)
			end()
			if err != nil {
				return err
			}
			return printf(cmd, "the tunnels have another key\n")
		},
	}
}
