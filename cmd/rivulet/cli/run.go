package cli

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"rivulet/appliance"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/bolt"
)

func newRun(c *common, engineName string) *cobra.Command {
	cfg := appliance.Config{EngineName: engineName}
	var debug bool
	var over settings
	cmd := &cobra.Command{
		Use:   "run",
		Short: "run the appliance; the systemd unit does this",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := over.source(cmd.Flags())
			if err == nil {
				err = over.check(source)
			}
			if err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return &exitError{exitFailed, errors.New("run needs root (containers, network); use: sudo rivulet run")}
			}
			cfg.Dirs, cfg.Source = c.dirs, source
			cfg.Log = logger(debug)
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			if err == nil {
				err = host.StateDisk("/", c.dirs.State, source.Path, string(mounts), cfg.Log)
			}
			if err != nil {
				return runError(err)
			}
			return runError(launch(cmd.Context(), cfg.Dirs, cfg.Log, func(ctx context.Context) error { return appliance.Run(ctx, cfg) }))
		},
	}
	f := cmd.Flags()
	over.flags(f)
	f.BoolVar(&debug, "debug", false, "log more")
	return cmd
}

// runError maps the end of the appliance to an exit code: systemd must not restart after an error that a restart does
// not cure.
func runError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bolt.ErrDamaged), errors.Is(err, bolt.ErrInUse),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR): // a file for a folder, or the other way round
		return &exitError{exitConfig, err}
	}
	return &exitError{exitFailed, err}
}

// library is the handler of the records of libraries: a request that this program has ended is no error, whatever the
// library calls it.
type library struct{ slog.Handler }

// Handle implements slog.Handler.
func (l library) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && errors.Is(err, context.Canceled) {
			r.Level = slog.LevelDebug
		}
		return r.Level != slog.LevelDebug
	})
	if !l.Enabled(ctx, r.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l library) WithAttrs(a []slog.Attr) slog.Handler { return library{l.Handler.WithAttrs(a)} }

// WithGroup implements slog.Handler.
func (l library) WithGroup(name string) slog.Handler { return library{l.Handler.WithGroup(name)} }

// logger creates the one logger, and redirects the logs of libraries to it.
func logger(debug bool) *slog.Logger {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	l := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(l)
	klog.SetSlogLogger(slog.New(library{l.Handler()}).With("from", "client-go"))
	log.SetFlags(0)
	return l
}
