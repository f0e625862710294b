package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rivulet/appliance/version"
	"rivulet/image/bundle"
)

func newVersion(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "what this binary is made of",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd, c) },
	}
	outputFlag(cmd, c)
	return cmd
}

func printVersion(cmd *cobra.Command, c *common) error {
	parts := append([]version.Part{{Name: "rivulet", Version: version.Version}}, version.Parts()...)
	helpers := bundle.Versions()
	for _, name := range []string{"runc", "iptables"} { // the others are linked in, too
		if v := helpers[name]; v != "" {
			parts = append(parts, version.Part{Name: name, Version: v})
		}
	}
	if c.forProgram() {
		return c.print(cmd.OutOrStdout(), parts)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, p := range parts {
		fmt.Fprintf(w, "%s\t%s\n", p.Name, p.Version)
	}
	return w.Flush()
}
