package install

import (
	"context"
	"os/exec"

	"rivulet/systemd"
)

// PackageTool returns the tool that has installed the program from a package, dpkg or rpm; empty if none has.
func PackageTool(ctx context.Context) string {
	switch {
	case exec.CommandContext(ctx, "dpkg-query", "--search", systemd.Binary).Run() == nil:
		return "dpkg"
	case exec.CommandContext(ctx, "rpm", "--query", "--file", systemd.Binary).Run() == nil:
		return "rpm"
	}
	return ""
}
