package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newOpen(c *common) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "open NAMESPACE[/SERVICE] --to PEER|group|all",
		Short: "let other clusters reach a namespace's pods, or a Service's (only writes a label)",
		Long:  "A namespace opens all ports of its pods, a Service the ports of its endpoints. The label names a peer by its ID. What is reachable without it: rivulet docs reach.",
		Args:  oneOpening,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usagef("open needs --to PEER, group or all, for example: rivulet open lab --to b; see: rivulet open --help")
			}
			if err := c.cluster().Open(cmd.Context(), args[0], to); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is open to %s\n", args[0], to)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "a peer by name or ID, group (peers that proved the group's secret) or all (every peer)")
	return cmd
}

func newClose(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "close NAMESPACE[/SERVICE]",
		Short: "undo rivulet open; connections end",
		Args:  oneOpening,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.cluster().Close(cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is closed\n", args[0])
			return nil
		},
	}
}

func oneOpening(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || strings.Count(args[0], "/") > 1 {
		return usagef("%s takes one namespace or NAMESPACE/SERVICE, for example: rivulet %s lab/web; see: rivulet %s --help", cmd.Name(), cmd.Name(), cmd.Name())
	}
	return nil
}
