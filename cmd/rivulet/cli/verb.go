package cli

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"rivulet/appliance/api"
)

// takes is for verbs of n arguments. usage is the error, with the verb as %[1]s and its path as %[2]s.
func takes(n int, usage string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef(usage, cmd.Name(), cmd.CommandPath())
		}
		return nil
	}
}

// oneName is for verbs of one name.
var oneName = takes(1, "%[1]s takes one name; see: %[2]s --help")

// group is a verb with only verbs below it.
func group(cmd *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(verbs...)
	return cmd
}

// withOutput is a verb with outputFlag.
func withOutput(c *common, cmd *cobra.Command, more ...string) *cobra.Command {
	outputFlag(cmd, c, more...)
	return cmd
}

// get runs a verb that prints an answer of the supervisor.
func get[T any](c *common, path string, print func(out io.Writer, v T, wide bool) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		var v T
		if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodGet, path, nil, &v); err != nil {
			return err
		}
		return result(cmd, c, v, func(out io.Writer, v T) error { return print(out, v, c.output == "wide") })
	}
}

// result prints v: for a program in the form of -o, else with print.
func result[T any](cmd *cobra.Command, c *common, v T, print func(io.Writer, T) error) error {
	if c.forProgram() {
		return c.print(cmd.OutOrStdout(), v)
	}
	return print(cmd.OutOrStdout(), v)
}

// resultf is result in one text.
func resultf(cmd *cobra.Command, c *common, v any, format string, args ...any) error {
	if c.forProgram() {
		return c.print(cmd.OutOrStdout(), v)
	}
	return printf(cmd, format, args...)
}

func printf(cmd *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format, args...)
	return err
}

// table prints the cells of each entry below a head, or none if there is no entry.
func table[T any](out io.Writer, none, head string, list []T, cells func(T) []any) error {
	if len(list) == 0 && none != "" {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, entry := range list {
		row := cells(entry)
		fmt.Fprintf(w, "%v"+strings.Repeat("\t%v", len(row)-1)+"\n", row...)
	}
	return w.Flush()
}

// pairs prints a key and its value on each line, in two columns; those without a value are left out.
func pairs(out io.Writer, rows [][2]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
	}
	return w.Flush()
}
