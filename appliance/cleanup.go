package appliance

import (
	"context"

	"rivulet/appliance/lifetime/cleanup"
)

// Cleanup ends everything of Rivulet on this machine and removes it, but for the
// state folder and the installation.
func Cleanup(ctx context.Context, dirs Dirs, engineName string) cleanup.Report {
	return cleanup.Run(ctx, traces(dirs, engineName))
}

// traces says what Rivulet leaves on a machine.
func traces(dirs Dirs, engineName string) cleanup.Config {
	return cleanup.Config{
		State: dirs.State, Run: dirs.Run, EngineName: engineName,
		Interface: tunnelInterface, NodeRange: nodeRange, Services: serviceCIDR, Pods: podCIDR,
	}
}
