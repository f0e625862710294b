package cli

import (
	"errors"
	"log"
	"log/slog"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"

	"rivulet/appliance"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/store"
)

func newRun(c *common, engineName string) *cobra.Command {
	cfg := appliance.Config{EngineName: engineName}
	var debug bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "the appliance; the systemd unit runs this",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkRun(cfg); err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return &exitError{exitFailed, errors.New("run needs root (containers, network); use: sudo rivulet run")}
			}
			cfg.Dirs = c.dirs
			cfg.Log = logger(debug)
			return runError(appliance.Run(cmd.Context(), cfg))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Name, "name", os.Getenv("RIVULET_NAME"), "name of this cluster for its peers; default: the host name at the first start. The node keeps its first name [$RIVULET_NAME]")
	f.StringVar(&cfg.ReserveCPU, "reserve-cpu", os.Getenv("RIVULET_RESERVE_CPU"), "CPU kept from pods, for example 500m [$RIVULET_RESERVE_CPU]")
	f.StringVar(&cfg.ReserveMemory, "reserve-memory", os.Getenv("RIVULET_RESERVE_MEMORY"), "memory kept from pods, for example 1Gi [$RIVULET_RESERVE_MEMORY]")
	f.BoolVar(&debug, "debug", false, "log more")
	return cmd
}

// checkRun judges what the user wrote, before anything is touched. A value may
// come from the environment as well; both are named.
func checkRun(cfg appliance.Config) error {
	for _, q := range []struct{ flag, env, value, example string }{
		{"--reserve-cpu", "RIVULET_RESERVE_CPU", cfg.ReserveCPU, "500m"},
		{"--reserve-memory", "RIVULET_RESERVE_MEMORY", cfg.ReserveMemory, "1Gi"},
	} {
		if q.value == "" {
			continue
		}
		if v, err := resource.ParseQuantity(q.value); err != nil || v.Sign() < 0 {
			return usagef("%s (or %s): %q is not a quantity; write for example %s %s; see: rivulet run --help", q.flag, q.env, q.value, q.flag, q.example)
		}
	}
	if err := appliance.CheckName(cfg.Name); err != nil {
		return usagef("--name (or RIVULET_NAME): %w; see: rivulet run --help", err)
	}
	return nil
}

// runError turns the end of the appliance into an exit code: systemd must not
// start again what starting again cannot cure.
func runError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrInUse), lifecycle.IsFatal(err),
		errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR): // a file for a folder, or the other way round
		return &exitError{exitConfig, err}
	}
	return &exitError{exitFailed, err}
}

// logger makes the one logger, and sends what libraries log to it.
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
