package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"rivulet/test/harness/docpage"
)

// What the environment says would be a flag's default, or a mistake.
func TestMain(m *testing.M) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "RIVULET_") {
			os.Unsetenv(name)
		}
	}
	os.Unsetenv("SUDO_USER") // it changes the command line that a confirmation prints
	os.Exit(m.Run())
}

// docs/reference/cli.md is what the commands say of themselves.
func TestReferenceOfCommands(t *testing.T) {
	root := newRoot("engine")
	var b strings.Builder
	fmt.Fprintf(&b, "# Commands\n\n%s\n\nEvery verb has these flags, too:\n\n```\n%s```\n\n", sentence(root.Short), root.PersistentFlags().FlagUsages())
	fmt.Fprintf(&b, "Exit codes: %d done; %d failed; %d the command line is wrong, or a yes is missing; %d done or read, and what it is about is not (yet) as it should be: `status` of a device that is not ready, a peer that has to approve as well; %d `run`: starting again does not help; %d ended by Ctrl-C.\n",
		exitOK, exitFailed, exitUsage, exitNotReady, exitConfig, exitSignal)
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		describeGroup(&b, root, g.ID)
	}
	b.WriteString("\n## Others\n")
	describeGroup(&b, root, "")
	docpage.Check(t, "cli.md", "the commands in cmd/rivulet/cli", b.String())
}

func describeGroup(b *strings.Builder, root *cobra.Command, id string) {
	for _, cmd := range root.Commands() {
		if cmd.GroupID == id && !cmd.Hidden {
			describe(b, cmd)
		}
	}
}

// describe writes a verb, and those below it.
func describe(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n", cmd.CommandPath(), sentence(strings.TrimSuffix(cmd.Short, ".")))
	if cmd.Long != "" {
		fmt.Fprintf(b, "\n%s\n", strings.TrimSpace(cmd.Long))
	}
	cmd.InitDefaultHelpFlag()
	if cmd.Runnable() {
		line := cmd.UseLine()
		if cmd.HasSubCommands() {
			line = strings.TrimSuffix(line, " [flags]")
		}
		fmt.Fprintf(b, "\n```\n%s\n", line)
		if flags := cmd.LocalNonPersistentFlags(); flags.HasAvailableFlags() {
			fmt.Fprintf(b, "\n%s", flags.FlagUsages())
		}
		b.WriteString("```\n")
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(cmd.Example, "  "), "\n  ", "\n"))
	}
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			describe(b, sub)
		}
	}
}
