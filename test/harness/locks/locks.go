// Package locks gives tests what all packages' tests of a machine share: ports and turns.
// A lock is a file below the temporary folder, and ends with the process that holds it.
package locks

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Ports takes n ports in a row, n at most 2, that are free on loopback by TCP and UDP, and returns the first.
// They are from below those that the kernel gives away, so that no connection has one before the test listens at it;
// they stay the test's until it has ended.
func Ports(t testing.TB, n int) int {
	t.Helper()
	const first, last, most = 15000, 32000, 2
	if n < 1 || n > most {
		t.Fatalf("%d ports in a row", n)
	}
	for range 100 {
		port := first + rand.IntN((last-first)/most)*most
		unlock, err := lock(strconv.Itoa(port), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		if free(port) && (n == 1 || free(port+1)) {
			t.Cleanup(unlock)
			return port
		}
		unlock()
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// Address takes a port of loopback, and returns its address.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Ports(t, 1)))
}

func free(port int) bool {
	at := ":" + strconv.Itoa(port)
	l, err := net.Listen("tcp", at)
	if err != nil {
		return false
	}
	l.Close()
	u, err := net.ListenPacket("udp", at)
	if err != nil {
		return false
	}
	u.Close()
	return true
}

// Turn waits until fewer than n tests have a turn of that name, takes one, and returns what gives it back.
func Turn(t testing.TB, name string, n int) (back func()) {
	t.Helper()
	how := unix.LOCK_EX | unix.LOCK_NB
	for i := 0; ; i = (i + 1) % n {
		back, err := lock(name+"-"+strconv.Itoa(i), how)
		if err == nil {
			return back
		} else if !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatal(err)
		}
		if i == n-1 { // all are taken: wait for the first
			how = unix.LOCK_EX
		}
	}
}

// lock takes a lock.
func lock(name string, how int) (unlock func(), _ error) {
	dir := filepath.Join(os.TempDir(), "rivulet-tests-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
