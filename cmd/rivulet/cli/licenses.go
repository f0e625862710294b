package cli

import (
	"github.com/spf13/cobra"

	"rivulet/image/licenses"
)

func newLicenses() *cobra.Command {
	return &cobra.Command{
		Use:   "licenses",
		Short: "print the licences of everything in this binary",
		Long:  "First a list of all modules and programs, then each text once. The sources of all lie beside it in the release: rivulet-VERSION-sources.tar and rivulet-VERSION-src.tar.zst.",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return licenses.Write(cmd.OutOrStdout()) },
	}
}
