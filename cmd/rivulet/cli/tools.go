package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"rivulet/appliance/engine"
)

// newTool passes everything on to an embedded tool.
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
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if os.Getenv("KUBECONFIG") == "" {
				os.Setenv("KUBECONFIG", engine.Kubeconfig(c.dirs.State))
			}
			if os.Getenv("CONTAINER_RUNTIME_ENDPOINT") == "" {
				os.Setenv("CONTAINER_RUNTIME_ENDPOINT", "unix:///run/k3s/containerd/containerd.sock")
			}
			if config := engine.CRIConfig(c.dirs.State); os.Getenv("CRI_CONFIG_FILE") == "" {
				if _, err := os.Stat(config); err == nil { // else crictl warns that /etc has none
					os.Setenv("CRI_CONFIG_FILE", config)
				}
			}
			if os.Getenv("KUBECACHEDIR") == "" && os.Geteuid() == 0 {
				// Not in root's home: it wears the card, and an uninstall would leave it.
				os.Setenv("KUBECACHEDIR", filepath.Join(c.dirs.Run, "kubectl"))
			}
			err = syscall.Exec(self, append([]string{name}, args...), os.Environ())
			return fmt.Errorf("%s: %w", name, err)
		},
	}
}
