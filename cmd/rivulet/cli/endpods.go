package cli

import (
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/lifetime/install"
)

// shutdownGrace is what pods get while the machine is shut down, the kubelet's default; TimeoutStopSec of the unit is longer.
const shutdownGrace = 30 * time.Second

func newEndPods(c *common, engineName string) *cobra.Command {
	return &cobra.Command{
		Use:    "end-pods",
		Short:  "end the containers of pods, if the machine is being shut down; the unit does this after rivulet has ended",
		Hidden: true, // for the unit
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !install.ShuttingDown(cmd.Context()) {
				return nil
			}
			return cleanup.EndContainers(cmd.Context(), cleanup.Config{State: c.dirs.State, Run: c.dirs.Run, EngineName: engineName}, shutdownGrace)
		},
	}
}
