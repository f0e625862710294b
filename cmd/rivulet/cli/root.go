// Package cli is Rivulet's command line, one file per verb. A verb checks its
// flags, asks the supervisor or the Kubernetes API, and prints; it decides
// nothing. Errors go to stderr as one line that ends in a cure.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"rivulet/appliance"
	"rivulet/appliance/version"
)

// Exit codes, the same for every verb.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotReady = 3  // status: running, but not ready
	exitConfig   = 78 // run: starting again will not help (EX_CONFIG of sysexits.h)
)

// exitError carries an exit code with, or instead of, a message.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// Main runs the command line and returns the exit code. engineName is the
// argv[0] under which this executable is the engine.
func Main(args []string, engineName string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	root := newRoot(engineName)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, "rivulet: "+msg)
	}
	var ee *exitError
	switch {
	case errors.As(err, &ee):
		return ee.code
	case isUsage(err):
		return exitUsage
	}
	return exitFailed
}

type usageError struct{ error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

func isUsage(err error) bool {
	// Cobra has no type for an unknown command.
	return errors.As(err, new(*usageError)) || strings.HasPrefix(err.Error(), "unknown command")
}

// common are the flags that every verb has.
type common struct {
	dirs   appliance.Dirs
	output string
}

func newRoot(engineName string) *cobra.Command {
	c := &common{}
	root := &cobra.Command{
		Use:           "rivulet",
		Short:         "A Kubernetes cluster in one binary that lends and borrows room from its neighbours",
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		// A word that is no command is an error, not a reason to print help and succeed.
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see: %s --help", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&c.dirs.State, "state", env("RIVULET_STATE", "/var/lib/rivulet"), "folder of everything that is kept [$RIVULET_STATE]")
	f.StringVar(&c.dirs.Run, "runtime", env("RIVULET_RUNTIME", "/run/rivulet"), "folder of sockets and PID files [$RIVULET_RUNTIME]")
	root.AddCommand(newRun(c, engineName), newStatus(c), newPeers(c), newOffload(c), newUnoffload(c), newVersion(c))
	for _, name := range []string{"kubectl", "ctr", "crictl"} {
		root.AddCommand(newTool(c, name))
	}
	return root
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// outputFlag adds -o to a verb; only json is known.
func outputFlag(cmd *cobra.Command, c *common) {
	cmd.Flags().StringVarP(&c.output, "output", "o", "", "json prints everything for programs")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if c.output != "" && c.output != "json" {
			return usagef("-o %s is not known; use -o json", c.output)
		}
		return nil
	}
}
