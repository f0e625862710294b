package firstboot

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
)

// NetworkName is the file on the boot partition that says why the device is on no network: for an owner without a
// screen there is no other place.
const NetworkName = "network.txt"

const (
	// networkAfter is the time since the boot that access points and DHCP may take.
	networkAfter = 3 * time.Minute
	// networkEvery bounds how often a reason that changes is written.
	networkEvery = 10 * time.Minute
)

// KeepNetworkNote keeps that file until ctx ends: it has the doctor's words while the doctor finds no network.
func KeepNetworkNote(ctx context.Context, dev Device, t *health.Tracker, log *slog.Logger) {
	_, up := lifecycle.Uptime()
	// A supervisor that was started again has to look first.
	for wait := max(networkAfter-up, time.Minute); changes.Wait(ctx, wait); wait = networkEvery {
		if err := noteNetwork(dev, t.Problems()); err != nil {
			log.Warn("the boot partition does not say why there is no network; see: rivulet doctor", "err", err)
		}
	}
}

// noteNetwork writes the file, or removes it; one that says the same is not written again.
func noteNetwork(dev Device, problems []health.Problem) error {
	d, name := disk{dev.Root}, filepath.Join(dev.Boot, NetworkName)
	var want []byte
	for _, p := range problems {
		if p.Code == health.LAN.Code {
			want = fmt.Appendf(nil, "This device is on no network:\r\n\r\n%s.\r\n\r\nWhat to do: %s.\r\n\r\nThe device removes this file when it is on a network.\r\n", p.Text, p.Cure)
		}
	}
	has, err := d.read(name)
	if err != nil || bytes.Equal(has, want) {
		return err
	}
	if dev.Open != nil {
		shut, err := dev.Open()
		if err != nil {
			return err
		}
		defer shut()
	}
	if want == nil {
		return d.remove(name)
	}
	return d.write(name, want, 0o644)
}
