package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rivulet/appliance/api"
	"rivulet/appliance/operate"
)

// yesFlag is of every verb that ends something: without it the verb asks for confirmation.
func yesFlag(cmd *cobra.Command) { cmd.Flags().BoolP("yes", "y", false, "skip the confirmation") }

// confirm prints what ends and asks for confirmation once. what is sentences, of which the first begins in lower case
// and the last has no full stop. Without a terminal --yes is needed.
func confirm(cmd *cobra.Command, what string) error {
	if yes, err := cmd.Flags().GetBool("yes"); err != nil || yes {
		return err
	}
	if !isTerminal(cmd.InOrStdin()) {
		return usagef("%s; there is no terminal to ask at, add --yes: %s", what, again(cmd))
	}
	return typed(cmd, what, "yes")
}

// typed prints what ends and asks for a word.
func typed(cmd *cobra.Command, what, word string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s\nGo on? Type %s: ", sentence(what), word)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != word {
		return &exitError{exitFailed, errors.New("nothing was done")}
	}
	return nil
}

// again is the command line of a verb, with --yes.
func again(cmd *cobra.Command) string {
	line := append([]string{cmd.CommandPath()}, cmd.Flags().Args()...)
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Changed && f.Value.String() == "true":
			line = append(line, "--"+f.Name)
		case f.Changed:
			line = append(line, "--"+f.Name+"="+f.Value.String())
		}
	})
	return strings.Join(append(line, "--yes"), " ")
}

// whatThereIs describes in sentences what a running device has; empty without an answer.
func (c *common) whatThereIs(ctx context.Context) (text string) {
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return ""
	}
	var peers []string
	for _, p := range operate.Peers(st.Peers) {
		peers = append(peers, operate.NameOf(p))
	}
	if len(peers) > 0 {
		text = ". Peers: " + strings.Join(peers, ", ")
	}
	return text + ". Pods: " + st.Pods.String()
}

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return &exitError{exitFailed, fmt.Errorf("%s needs root; use: sudo rivulet %s", verb, verb)}
	}
	return nil
}
