package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"rivulet/appliance"
	"rivulet/appliance/lifetime/upgrade"
)

// launch runs the appliance in the version that is to run: first it continues an upgrade in progress, and an upgrade
// staged meanwhile starts when run ends.
func launch(ctx context.Context, dirs appliance.Dirs, log *slog.Logger, run func(context.Context) error) error {
	d := &upgrade.Device{State: dirs.State, Run: dirs.Run, Installed: upgrade.Installed, Args: os.Args[1:], Log: log}
	if !upgrade.OnTrial() {
		choice, err := d.Launch(ctx)
		switch {
		case err != nil:
			return err
		case choice.Exit && choice.Code == 0:
			return nil
		case choice.Exit:
			return &exitError{code: choice.Code}
		case choice.Restart:
			return d.Restart(ctx)
		case choice.Run != nil:
			return d.Become(d.Binary(*choice.Run))
		}
	}
	err := run(ctx)
	if !errors.Is(err, appliance.ErrRestart) {
		return err
	}
	return d.Become("/proc/self/exe")
}
