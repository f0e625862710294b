package cli

import (
	"cmp"
	"io"
	"time"

	"github.com/spf13/cobra"

	"rivulet/appliance/version"
	"rivulet/image/bundle"
	"rivulet/image/signed"
)

func newVersion(c *common) *cobra.Command {
	return withOutput(c, &cobra.Command{
		Use:   "version",
		Short: "print the versions of this binary's parts",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd, c) },
	})
}

func printVersion(cmd *cobra.Command, c *common) error {
	parts := append([]version.Part{{Name: "rivulet", Version: version.Version}}, version.Parts()...)
	helpers := bundle.Versions()
	for _, name := range []string{"runc", "iptables"} { // the others are linked in, too
		if v := helpers[name]; v != "" {
			parts = append(parts, version.Part{Name: name, Version: v})
		}
	}
	// By these two and the time make release knows a binary; an owner compares the keys with SECURITY.md.
	parts = append(parts, version.Part{Name: "built", Version: version.Built().Format(time.RFC3339)},
		version.Part{Name: "root keys", Version: cmp.Or(signed.RootKeys(), "none")}, version.Part{Name: "key generation", Version: signed.MinGeneration()})
	return result(cmd, c, parts, func(out io.Writer, parts []version.Part) error {
		var rows [][2]string
		for _, p := range parts {
			rows = append(rows, [2]string{p.Name, p.Version})
		}
		return pairs(out, rows)
	})
}
