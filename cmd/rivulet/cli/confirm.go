package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rivulet/appliance/api"
	"rivulet/appliance/operate"
)

// yesFlag is of every verb that ends something: without it the verb asks for confirmation.
func yesFlag(cmd *cobra.Command) { cmd.Flags().BoolP("yes", "y", false, "skip the confirmation") }

// confirm asks once whether to do what it says: question begins with a verb in lower case and has no question mark. what
// are sentences that follow, of what ends with it, without the last full stop; it may be empty and may begin with ". ".
// Without a terminal --yes is needed.
func confirm(cmd *cobra.Command, question, what string) error {
	question += "?"
	if what = strings.TrimPrefix(what, ". "); what != "" {
		question += " " + sentence(what)
	}
	if yes, err := cmd.Flags().GetBool("yes"); err != nil || yes {
		return err
	}
	if !isTerminal(cmd.InOrStdin()) {
		return usagef("%s Nothing was done; there is no terminal to ask at, add --yes: %s", question, again(cmd))
	}
	return typed(cmd, question, "yes")
}

// known returns an error with all names unless name is one of them: what a question is about is checked before it is asked.
func known(what, name, see string, all []string, err error) error {
	switch {
	case err != nil || slices.Contains(all, name):
		return err
	case len(all) == 0:
		return fmt.Errorf("there is no %s %q, and no other; see: %s", what, name, see)
	}
	return fmt.Errorf("there is no %s %q, but: %s; see: %s", what, name, strings.Join(all, ", "), see)
}

// typed prints a question and asks for a word; y is short for yes. Ctrl-C ends the question.
func typed(cmd *cobra.Command, question, word string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s\nIf so, type %s: ", strings.ToUpper(question[:1])+question[1:], word)
	line, err := answer(cmd)
	if err != nil {
		return err
	}
	if line = strings.TrimSpace(line); line != word && (word != "yes" || !strings.EqualFold(line, "y")) {
		return &exitError{exitFailed, errors.New("nothing was done")}
	}
	return nil
}

// answer reads a line, the empty one at the end of the input, and fails when the command is interrupted.
func answer(cmd *cobra.Command) (string, error) {
	lines := make(chan string, 1)
	go func() { // after an interruption it reads until the process ends
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		lines <- line
	}()
	ctx := cmd.Context()
	if ctx == nil { // of a verb that is not executed
		ctx = context.Background()
	}
	select {
	case line := <-lines:
		return line, nil
	case <-ctx.Done():
		fmt.Fprintln(cmd.ErrOrStderr())
		return "", context.Cause(ctx)
	}
}

// again is the command line of a verb, with --yes, for a shell.
func again(cmd *cobra.Command) string {
	line := strings.Fields(cmd.CommandPath())
	if os.Getenv("SUDO_USER") != "" {
		line = append([]string{"sudo"}, line...)
	}
	var words []string
	for _, word := range cmd.Flags().Args() {
		words = append(words, quoted(word))
	}
	dashes := slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
	if !dashes {
		line = append(line, words...)
	}
	add := func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if f.Value.Type() == "stringToString" {
			values = nil
			pairs, _ := cmd.Flags().GetStringToString(f.Name)
			for _, k := range slices.Sorted(maps.Keys(pairs)) {
				values = append(values, k+"="+pairs[k])
			}
		}
		for _, v := range values {
			switch {
			case !f.Changed:
			case f.Value.Type() == "bool" && v == "true":
				line = append(line, "--"+f.Name)
			default:
				line = append(line, "--"+f.Name+"="+quoted(v))
			}
		}
	}
	cmd.LocalNonPersistentFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	line = append(line, "--yes")
	if dashes {
		line = append(append(line, "--"), words...)
	}
	return strings.Join(line, " ")
}

// quoted is a word of a shell's command line.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_./:=@%+,-", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
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
