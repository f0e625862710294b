package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial opens a connection from inside the device's network; addr is IP:port.
func (d *Device) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("lab: dial: %w: names are not resolved here", err)
	}
	err = d.inNetwork(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// HTTP is a client inside the device's network; its URLs hold IP addresses.
func (d *Device) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: d.Dial, DisableKeepAlives: true}}
}

// inNetwork calls f on a thread in the device's network namespace. A socket that is made there stays there.
func (d *Device) inNetwork(f func() error) error {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return err
	}
	ds := s.device(d.Name)
	if ds == nil {
		return fmt.Errorf("lab: there is no device %q", d.Name)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", ds.Init.PID))
	if err == nil {
		defer ns.Close()
	}
	if err != nil || !ds.Init.Alive() {
		return fmt.Errorf("lab: device %s is off: switch it on with `rivulet-lab start %s`", d.Name, d.Name)
	}
	// The thread has to come back: it may be the program's first one, which does not end with a goroutine that keeps it.
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("lab: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("lab: enter the network of %s: %w", d.Name, err)
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("lab: leave the network of %s: %w", d.Name, back)) // the thread stays locked
	}
	runtime.UnlockOSThread()
	return err
}
