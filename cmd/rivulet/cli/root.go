// Package cli is Rivulet's command line, one file per verb. A verb checks its flags, sends requests to the supervisor
// or the Kubernetes API, and prints; it makes no decisions. Errors go to stderr as one line that ends in a cure.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance"
	"rivulet/appliance/api"
	"rivulet/appliance/operate"
)

// Exit codes, the same for every verb.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitNotReady = 3   // it was done or read, and what is asked about is not (yet) as it should be
	exitConfig   = 78  // run: a restart does not help (EX_CONFIG of sysexits.h)
	exitSignal   = 130 // Ctrl-C, or a signal to end
)

// exitError has an exit code with, or instead of, a message.
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

// Arguments are those of a command line. kubectl runs kubectl_complete-rivulet for completions of kubectl rivulet.
func Arguments(args []string) []string {
	if filepath.Base(args[0]) == "kubectl_complete-rivulet" {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

// Main runs the command line and returns the exit code. engineName is the argv[0] of the engine.
func Main(args []string, engineName string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // the second one ends the process at once
	root := newRoot(engineName)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return exitSignal
	}
	if run, flagErr := root.PersistentFlags().GetString("runtime"); flagErr == nil {
		err = onWorker(ctx, run, err)
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(root.ErrOrStderr(), "rivulet: "+oneLine(withSudo(msg, args)))
	}
	return exitCode(err)
}

// onWorker explains what the server of this cluster does not let a worker do.
func onWorker(ctx context.Context, run string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	st, failed := api.Get(ctx, run)
	if failed != nil || st.Member == nil {
		return err
	}
	return answered{fmt.Errorf("%s is a worker of cluster %s and may do no more than run its pods; type the same on that cluster's server", st.NodeName, st.Member.Cluster), err}
}

// withSudo converts the cure for users other than root to a command line.
func withSudo(msg string, args []string) string {
	if what, ok := strings.CutSuffix(msg, "; use sudo"); ok {
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = quoted(a)
		}
		return what + "; sudo rivulet " + strings.Join(words, " ")
	}
	return msg
}

// exitCode is the exit code for an error of a verb.
func exitCode(err error) int {
	var ee *exitError
	switch {
	case errors.As(err, &ee):
		return ee.code
	case errors.As(err, new(*usageError)):
		if os.Getenv("NOTIFY_SOCKET") != "" {
			// A service manager must distinguish it from a crashed Go program, which also exits with 2 and has to be
			// restarted.
			return exitConfig
		}
		return exitUsage
	}
	return exitFailed
}

// oneLine joins a library's message of several lines.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

type usageError struct{ error }

func (u *usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// noArgs is for verbs that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasParent() && !cmd.HasSubCommands() {
		return usagef("%s takes no argument, yet was given %q; see: %s --help", cmd.Name(), args[0], cmd.CommandPath())
	}
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return usagef("there is no command %q; did you mean %s? see: %s --help", args[0], strings.Join(like, " or "), cmd.CommandPath())
	}
	return usagef("there is no command %q; see: %s --help", args[0], cmd.CommandPath())
}

// common are the flags of every verb.
type common struct {
	dirs   appliance.Dirs
	output string
}

// client is a client of this device's API server, with its owner's rights.
func (c *common) client() (kubernetes.Interface, error) {
	cfg, err := c.usable(context.Background())
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// cluster is the cluster of this device.
func (c *common) cluster() operate.Cluster {
	return operate.Cluster{Client: c.client, Supervisor: api.Client{RunDir: c.dirs.Run}}
}

// Command returns all commands, for documentation. It runs nothing.
func Command() *cobra.Command {
	root := newRoot("")
	each(root, func(cmd *cobra.Command) { cmd.DisableAutoGenTag = true })
	root.DisableAutoGenTag = true
	return root
}

// defaultDirs are the folders of a device.
var defaultDirs = appliance.Dirs{State: "/var/lib/rivulet", Run: "/run/rivulet"}

func newRoot(engineName string) *cobra.Command {
	// Parts of the engine add flags to it, such as --version, and cobra would accept them for every command.
	pflag.CommandLine = pflag.NewFlagSet("rivulet", pflag.ContinueOnError)
	c := &common{}
	var showVersion bool
	root := &cobra.Command{
		Use:           "rivulet",
		Short:         "A Kubernetes cluster in one binary that borrows capacity from its neighbours, and lends its own",
		SilenceErrors: true,
		SilenceUsage:  true,
		// An unknown command is an error, not a reason to print help and succeed.
		Args:                       noArgs,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return printVersion(cmd, c)
			}
			return cmd.Help()
		},
	}
	root.SetOut(&plain{file: os.Stdout})
	root.SetErr(&plain{file: os.Stderr})
	root.Flags().BoolVar(&showVersion, "version", false, "print the versions of this binary's parts")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see: %s --help", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&c.dirs.State, "state", env("RIVULET_STATE", defaultDirs.State), "folder of the persistent state [$RIVULET_STATE]")
	f.StringVar(&c.dirs.Run, "runtime", env("RIVULET_RUNTIME", defaultDirs.Run), "folder of sockets and PID files [$RIVULET_RUNTIME]")
	root.SetHelpCommand(newHelp(root))
	root.AddCommand(newRun(c, engineName), newStatus(c), newPeers(c), newOffload(c), newUnoffload(c), newOpen(c), newClose(c), newConfig(c), newVersion(c), newLicenses(), newDocs())
	root.AddCommand(newNodes(c), newToken(c), newJoin(c), newLeave(c), newPeer(c), newApprove(c), newDeny(c), newInvite(c), newUnpeer(c), newRotateKey(c), newBroker(c))
	root.AddCommand(newCordon(c), newUncordon(c), newDrain(c), newMove(c), newVolumes(c), newTenants(c), newServices(c), newBurst(c), newVCluster(c), newCourse(c), newPods(c), newWhy(c), newTrace(c), newKubeconfig(c), newImage(c))
	root.AddCommand(newBackup(c), newRestore(c), newUpgrade(c))
	root.AddCommand(newDoctor(c), newMetrics(c), newSupport(c), newConsole(c))
	root.AddCommand(newInstall(c), newUninstall(c, engineName), newReset(c, engineName), newFlash(c), newFirstboot(c), newEndPods(c, engineName))
	for _, name := range []string{"kubectl", "ctr", "crictl"} {
		root.AddCommand(newTool(c, name))
	}
	arrange(root)
	c.complete(root)
	return root
}

// newHelp is cobra's help, with an error for an unknown command.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "help about a command",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return noArgs(root, args)
			}
			return cmd.Help()
		},
	}
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}
