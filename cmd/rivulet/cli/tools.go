package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
)

// newTool passes all arguments to an embedded tool.
func newTool(c *common, name string) *cobra.Command {
	short := map[string]string{
		"kubectl": "the embedded kubectl, pointed at this cluster",
		"ctr":     "the embedded containerd client",
		"crictl":  "the embedded CRI client",
	}[name]
	return &cobra.Command{
		Use:                name + " ...",
		Short:              short,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := ownFlags(cmd, args)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if os.Getenv("KUBECONFIG") == "" {
				if _, err := c.usable(cmd.Context()); err != nil && name == "kubectl" && !local(args) {
					return err
				}
				os.Setenv("KUBECONFIG", paths.Kubeconfig(c.dirs.State))
			}
			if os.Getenv("CONTAINER_RUNTIME_ENDPOINT") == "" {
				os.Setenv("CONTAINER_RUNTIME_ENDPOINT", "unix:///run/k3s/containerd/containerd.sock")
			}
			if config := engine.CRIConfig(c.dirs.State); os.Getenv("CRI_CONFIG_FILE") == "" {
				if _, err := os.Stat(config); err == nil { // otherwise crictl warns about a missing file in /etc
					os.Setenv("CRI_CONFIG_FILE", config)
				}
			}
			if os.Getenv("KUBECACHEDIR") == "" && os.Geteuid() == 0 {
				// Not in root's home: it wears the card, and an uninstall would not remove it.
				os.Setenv("KUBECACHEDIR", filepath.Join(c.dirs.Run, "kubectl"))
			}
			err = syscall.Exec(self, append([]string{name}, args...), os.Environ())
			return fmt.Errorf("%s: %w", name, err)
		},
	}
}

// ownFlags sets the flags of rivulet itself, which come first, and returns those of the tool.
func ownFlags(cmd *cobra.Command, args []string) ([]string, error) {
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		if name != "--state" && name != "--runtime" {
			break
		}
		args = args[1:]
		if !given {
			if len(args) == 0 {
				return nil, usagef("%s names a folder; see: rivulet %s --help", name, cmd.Name())
			}
			value, args = args[0], args[1:]
		}
		if err := cmd.InheritedFlags().Set(strings.TrimPrefix(name, "--"), value); err != nil {
			return nil, usagef("%s: %w", name, err)
		}
	}
	return args, nil
}

// local reports whether the kubectl command needs no cluster, or names one.
func local(args []string) bool {
	for _, a := range args {
		if a == "--help" || a == "-h" || a == "--client" || a == "--client=true" || strings.HasPrefix(a, "--kubeconfig") || strings.HasPrefix(a, "--server") || a == "-s" {
			return true
		}
	}
	return len(args) == 0 || args[0] == "help" || args[0] == "completion" || args[0] == "__complete" || args[0] == "options" || args[0] == "kustomize"
}
