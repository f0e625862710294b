package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Flags that a library puts into the set of the whole program are no flags of our commands.
func TestNoForeignFlags(t *testing.T) {
	pflag.CommandLine.Bool("foreign", false, "of a library")
	each(newRoot("engine"), func(cmd *cobra.Command) {
		if cmd.InheritedFlags().Lookup("foreign") != nil || cmd.Flags().Lookup("foreign") != nil {
			t.Errorf("%s takes it", path(cmd))
		}
	})
}

// Every verb says its purpose first, has an example that there is, and is in a group.
func TestHelp(t *testing.T) {
	seen := map[string]bool{}
	each(newRoot("engine"), func(cmd *cobra.Command) {
		seen[path(cmd)] = true
		if cmd.Name() == "help" || cmd.Name() == "completion" || strings.HasPrefix(path(cmd), "completion ") {
			return
		}
		if cmd.Parent().Parent() == nil && cmd.GroupID == "" && cmd.Name() != "version" {
			t.Errorf("%s is in no group", path(cmd))
		}
		if !cmd.HasSubCommands() && cmd.Example == "" {
			t.Errorf("%s has no example", path(cmd))
		}
		for _, line := range codeOf("```\n" + cmd.Example + "\n```") {
			for _, words := range commandsIn(line) {
				if err := exists(newRoot("engine"), words); err != nil {
					t.Errorf("%s: example %q: %v", path(cmd), line, err)
				}
			}
		}
		var out bytes.Buffer
		root := newRoot("engine")
		root.SetOut(&out)
		root.SetArgs(append([]string{"help"}, strings.Fields(path(cmd))...))
		if err := root.Execute(); err != nil {
			t.Error(err)
		}
		if want := sentence(cmd.Short); !strings.HasPrefix(out.String(), want) || len(want) < 10 {
			t.Errorf("%s: help begins with %.60q, want %q", path(cmd), out.String(), want)
		}
	})
	for name := range examples {
		if !seen[name] {
			t.Errorf("an example is for %s, which is no verb", name)
		}
	}
	for _, g := range groups {
		for _, name := range g.verbs {
			if !seen[name] {
				t.Errorf("group %s has %s, which is no verb", g.title, name)
			}
		}
	}
}

// As plug-in of kubectl, and as its completion.
func TestArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"rivulet status -w", "status -w"},
		{"/usr/local/bin/kubectl-rivulet pods", "pods"},
		{"/usr/local/bin/kubectl_complete-rivulet stat", "__complete stat"},
	} {
		if got := strings.Join(Arguments(strings.Fields(c.args)), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.args, got, c.want)
		}
	}
}
