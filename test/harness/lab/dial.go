package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"time"

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

// Listen opens a TCP port inside the device's network, as a program of its owner would.
func (d *Device) Listen(addr string) (l net.Listener, err error) {
	err = d.inNetwork(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	})
	return l, err
}

// HTTP is a client inside the device's network; its URLs hold IP addresses.
func (d *Device) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: d.Dial, DisableKeepAlives: true}}
}

// supervisorSocket is where the supervisor answers on a device.
const supervisorSocket = "/run/rivulet/rivulet.sock"

// Ask gets a path of the supervisor's local API, such as /v1/status, and decodes the answer into out.
func (d *Device) Ask(ctx context.Context, path string, out any) error {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return err
	}
	ds := s.device(d.Name)
	if ds == nil || !ds.Init.Alive() {
		return fmt.Errorf("lab: device %s is off: switch it on with `rivulet-lab start %s`", d.Name, d.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	socket := fmt.Sprintf("/proc/%d/root%s", ds.Init.PID, supervisorSocket)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.Name+path, nil)
	if err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("lab: rivulet of %s: %w", d.Name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("lab: rivulet of %s: %s: %s", d.Name, path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("lab: rivulet of %s: %s: %w", d.Name, path, err)
	}
	return nil
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
