package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// outputFlag adds -o to a verb: json and yaml for programs, and further values.
func outputFlag(cmd *cobra.Command, c *common, more ...string) {
	known := append([]string{"json", "yaml"}, more...)
	cmd.Flags().StringVarP(&c.output, "output", "o", "", "json or yaml, for programs"+strings.Join(append([]string{""}, more...), "; or "))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if c.output == "" || slices.Contains(known, c.output) {
			return nil
		}
		return usagef("-o %s is not known; use -o %s; see: %s --help", c.output, strings.Join(known, " or -o "), cmd.CommandPath())
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp))
}

// forProgram reports whether the output is for a program: JSON, or YAML of the same.
func (c *common) forProgram() bool { return c.output == "json" || c.output == "yaml" }

// print writes v in the form of -o. A list without entries is [], never null.
func (c *common) print(out io.Writer, v any) error {
	whole := reflect.New(reflect.TypeOf(v)).Elem()
	whole.Set(reflect.ValueOf(v))
	emptyLists(whole)
	if c.output != "yaml" {
		text, err := json.Marshal(whole.Interface())
		if err != nil {
			return err
		}
		_, err = out.Write(append(escaped(text), '\n'))
		return err
	}
	text, err := yaml.Marshal(whole.Interface())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "---\n%s", text)
	return err
}

// emptyLists replaces nil lists by empty ones, at any depth.
func emptyLists(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			emptyLists(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				emptyLists(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.IsNil() && v.CanSet() && v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			emptyLists(v.Index(i))
		}
	}
}

// isTerminal reports whether a stream is a terminal. Output elsewhere has no escape sequences.
func isTerminal(stream any) bool {
	if out, ok := stream.(io.Writer); ok {
		stream = raw(out)
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
