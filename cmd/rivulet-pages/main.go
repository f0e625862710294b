// Command rivulet-pages writes files for packages of the program: a man page for every verb, and completions for bash,
// zsh and fish. It alone writes the given folder. The same commands and the same time give the same bytes.
//
//	go run ./cmd/rivulet-pages FOLDER SECONDS
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"rivulet/cmd/rivulet/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rivulet-pages:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: rivulet-pages FOLDER SECONDS (of the commit, since 1970)")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	date := time.Unix(seconds, 0).UTC()
	dir := args[0]
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	man := filepath.Join(dir, "man")
	if err := os.MkdirAll(man, 0o755); err != nil {
		return err
	}
	root := cli.Command()
	if err := doc.GenManTree(root, &doc.GenManHeader{Title: "RIVULET", Section: "1", Source: "Rivulet", Manual: "Rivulet", Date: &date}, man); err != nil {
		return err
	}
	return completions(root, dir)
}

func completions(root *cobra.Command, dir string) error {
	return errors.Join(
		root.GenBashCompletionFileV2(filepath.Join(dir, "rivulet.bash"), true),
		root.GenZshCompletionFile(filepath.Join(dir, "_rivulet")),
		root.GenFishCompletionFile(filepath.Join(dir, "rivulet.fish"), true))
}
