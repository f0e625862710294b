package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/state/durable"
)

// toFile replaces a file, readable by its owner only, which gets its name only when it is complete and on the disk. An
// error of the disk ends in the cure; errors of fill are returned unchanged.
func toFile(path, cure string, fill func(io.Writer) error) error {
	var own error
	err := durable.Replace(path, 0o600, func(f *os.File) error {
		disk := &durable.Writer{Writer: f}
		if own = fill(disk); disk.Err != nil {
			own = nil
			return durable.Cure(disk.Err)
		}
		return own
	})
	if own != nil {
		return own
	}
	return durable.WithCure(err, cure)
}

// secretWord returns a word that opens something, or with - the first line of standard input: arguments are shown to every
// user of the machine, and kept in a shell's history.
func secretWord(cmd *cobra.Command, word string) (string, error) {
	if word != "-" {
		return word, nil
	}
	raw, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 64<<10))
	line, _, _ := strings.Cut(string(raw), "\n")
	if line = strings.TrimSpace(line); err == nil && line == "" {
		err = errors.New("its first line is empty")
	}
	if err != nil {
		return "", fmt.Errorf("standard input: %w; give it there, for example: %s - < FILE", err, cmd.CommandPath())
	}
	return line, nil
}

// input opens a file to read, - for standard input; cure is for a missing file.
func input(cmd *cobra.Command, name, cure string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, cure)
	}
	return f, nil
}

// saveTo fills a new file, with force also an existing one, or for - standard output unless that is a terminal.
func saveTo(cmd *cobra.Command, name string, force bool, terminal error, what string, fill func(io.Writer) error) error {
	if name == "-" {
		if isTerminal(cmd.OutOrStdout()) {
			return terminal
		}
		return fill(raw(cmd.OutOrStdout()))
	}
	if _, err := os.Lstat(name); err == nil && !force {
		return fmt.Errorf("%s is there already; give another name, or replace it with --force", name)
	}
	return toFile(name, "choose another place for the file", func(w io.Writer) error {
		defer busy(what)()
		return fill(w)
	})
}
