package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// confirm asks once. Without a terminal nobody can answer: then --yes is needed.
func confirm(cmd *cobra.Command, yes bool, what string) error {
	if yes {
		return nil
	}
	if !isTerminal(os.Stdin) {
		return usagef("%s cannot be undone, and there is no terminal to ask at; add --yes", cmd.Name())
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s.\nGo on? Type yes: ", what)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "yes" {
		return &exitError{exitFailed, errors.New("nothing was done")}
	}
	return nil
}

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return &exitError{exitFailed, fmt.Errorf("%s needs root; use: sudo rivulet %s", verb, verb)}
	}
	return nil
}
