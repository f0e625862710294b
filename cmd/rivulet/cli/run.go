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

// logger creates the one logger, and redirects the logs of libraries to it.
func logger(debug bool) *slog.Logger {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	l := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	slog.SetDefault(l)
	klog.SetSlogLogger(l.With("from", "client-go"))
	log.SetFlags(0)
	return l
}
