package cli

import (
	"errors"
	"log"
	"log/slog"
	"os"

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
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, v := range map[string]string{"reserve-cpu": cfg.ReserveCPU, "reserve-memory": cfg.ReserveMemory} {
				if v == "" {
					continue
				}
				if q, err := resource.ParseQuantity(v); err != nil || q.Sign() < 0 {
					return usagef("--%s %s is not a quantity; write for example --reserve-cpu 500m or --reserve-memory 1Gi", flag, v)
				}
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
	f.StringVar(&cfg.Name, "name", os.Getenv("RIVULET_NAME"), "name of this cluster and its node; default: the host name [$RIVULET_NAME]")
	f.StringVar(&cfg.ReserveCPU, "reserve-cpu", os.Getenv("RIVULET_RESERVE_CPU"), "CPU kept from pods, for example 500m [$RIVULET_RESERVE_CPU]")
	f.StringVar(&cfg.ReserveMemory, "reserve-memory", os.Getenv("RIVULET_RESERVE_MEMORY"), "memory kept from pods, for example 1Gi [$RIVULET_RESERVE_MEMORY]")
	f.BoolVar(&debug, "debug", false, "log more")
	return cmd
}

// runError turns the end of the appliance into an exit code: systemd must not
// start again what starting again cannot cure.
func runError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrInUse), lifecycle.IsFatal(err):
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
