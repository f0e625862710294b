package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// owner is DIR/owner.json of a lab that ends with the process that made its folder, such as a suite's. A lab that a
// person made has none.
type owner struct {
	Boot   string `json:"boot"` // of the host
	Owner  Proc   `json:"owner"`
	Warden Proc   `json:"warden,omitzero"` // zero until it was started; it ends by itself with the owner
}

func ownerFile(dir string) string { return filepath.Join(dir, "owner.json") }

// OwnDir makes a folder, as os.MkdirTemp does, for a lab that ends with this process however that ends: a process of
// its own, the warden, takes it down then. Down ends the warden, too.
func OwnDir(parent, pattern string) (string, error) {
	self, err := procOf(os.Getpid())
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	o := owner{Boot: hostBoot(), Owner: self}
	if err := replaceFile(ownerFile(dir), o); err != nil {
		return "", err
	}
	cmd := reexec(wardenName, dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if o.Warden, err = begin(cmd); err != nil {
		return "", err
	}
	return dir, replaceFile(ownerFile(dir), o)
}

// owned reads who owns the lab in a folder; ok is false where nobody does. A process of another boot is none.
func owned(dir string) (o owner, ok bool) {
	raw, err := os.ReadFile(ownerFile(dir))
	if err != nil || json.Unmarshal(raw, &o) != nil {
		return owner{}, false
	}
	if o.Boot != hostBoot() {
		o.Owner, o.Warden = Proc{}, Proc{}
	}
	return o, true
}

// warden waits until the owner of a lab has ended, and takes the lab down.
func warden(dir string) error {
	o, ok := owned(dir)
	if !ok {
		return fmt.Errorf("lab: %s has no owner", dir)
	}
	if err := o.Owner.wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return downIfAny(ctx, dir)
}

// endWarden ends the warden, unless this process is it. The lock is held.
func endWarden(ctx context.Context, dir string) error {
	if o, ok := owned(dir); ok && o.Warden.PID != os.Getpid() {
		return o.Warden.kill(ctx)
	}
	return nil
}

// Sweep takes down the labs below the folders that match the pattern whose owner has ended. One whose owner runs, or
// that never had any, stays. It waits for a warden that is at it.
func Sweep(ctx context.Context, pattern string) (swept []string, err error) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	var errs []error
	for _, dir := range dirs {
		if o, ok := owned(dir); !ok || o.Owner.Alive() {
			continue
		}
		swept = append(swept, dir)
		errs = append(errs, downIfAny(ctx, dir))
	}
	return swept, errors.Join(errs...)
}

// downIfAny is Down where another process may have been faster, or nothing was made yet.
func downIfAny(ctx context.Context, dir string) error {
	if err := Down(ctx, dir); err != nil && !errors.Is(err, ErrNoLab) {
		return err
	}
	return nil
}

// wait returns when the process has ended; at once if it has.
func (p Proc) wait() error {
	if p.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lab: open process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	for p.Alive() { // checked after opening: the pidfd is of this process, or of one that has its PID now
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lab: wait for process %d: %w", p.PID, err)
		}
	}
	return nil
}
