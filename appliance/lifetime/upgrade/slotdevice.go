package upgrade

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"

	"rivulet/appliance/lifetime/slots"
	"rivulet/fabric/changes"
	"rivulet/image/device/layout"
)

// Slot implements Slots.
func (d *Device) Slot() layout.Slot {
	s, err := slots.Running()
	if err != nil {
		return 0
	}
	return s
}

// BootID implements Slots.
func (d *Device) BootID() string { return changes.BootID() }

// Arm implements Slots.
func (d *Device) Arm(i Image) error {
	return slots.Change(func(b slots.Boot) error { return slots.Arm(b, i.from(), i.to()) })
}

// Accept implements Slots.
func (d *Device) Accept(i Image) error {
	return slots.Change(func(b slots.Boot) error { return slots.Accept(b, i.to()) })
}

// Reject implements Slots.
func (d *Device) Reject(i Image) error {
	return slots.Change(func(b slots.Boot) error { return slots.Reject(b, i.from()) })
}

// Restart restarts the device in order: the service manager ends pods. It returns when this process is stopped.
func (d *Device) Restart(ctx context.Context) error {
	unix.Sync()
	if out, err := exec.CommandContext(ctx, "systemctl", "reboot").CombinedOutput(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("update: the device cannot be restarted: %w %s; restart it by hand: sudo reboot", err, bytes.TrimSpace(out))
	}
	<-ctx.Done()
	return nil
}
