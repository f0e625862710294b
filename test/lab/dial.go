package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial opens a connection from inside the device's network. The address is IP:port, because names are resolved elsewhere.
func (d *Device) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("lab: dial: %w", err)
	}
	var c net.Conn
	err := d.inside(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen opens a listener inside the device's network.
func (d *Device) Listen(network, addr string) (net.Listener, error) {
	var ln net.Listener
	err := d.inside(func() (err error) {
		ln, err = net.Listen(network, addr)
		return err
	})
	return ln, err
}

// HTTP is a client that stands inside the device's network; URLs hold IP addresses.
func (d *Device) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: d.Dial, DisableKeepAlives: true}}
}

// inside calls f on a thread that is in the device's network namespace. Sockets made there stay there.
func (d *Device) inside(f func() error) error {
	s, err := loadState(d.lab.dir)
	if err != nil {
		return err
	}
	ds, err := s.find(d.Name)
	if err != nil {
		return err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", ds.Init.PID))
	if err != nil || !ds.Init.Alive() {
		return fmt.Errorf("lab: device %s is off: start it with `rivulet-lab start %s`", d.Name, d.Name)
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine and its namespace with it
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("lab: enter network of %s: %w", d.Name, err)
			return
		}
		done <- f()
	}()
	return <-done
}
