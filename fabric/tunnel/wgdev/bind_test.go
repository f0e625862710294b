package wgdev

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"

	"rivulet/test/harness/testns"
)

// With path MTU discovery on, a path narrower than the tunnel loses whole batches.
func TestSocketsLetRoutersFragment(t *testing.T) {
	testns.New(t).Do(func() error {
		b := &bind{Bind: conn.NewStdNetBind(), log: slog.New(slog.DiscardHandler)}
		_, port, err := b.Open(0)
		if err != nil {
			return err
		}
		defer b.Close()
		found := 0
		fds, err := os.ReadDir("/proc/self/fd")
		for _, e := range fds {
			var fd int
			fmt.Sscan(e.Name(), &fd)
			switch sa, _ := unix.Getsockname(fd); sa := sa.(type) {
			case *unix.SockaddrInet4:
				if v, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER); sa.Port == int(port) {
					found++
					if v != unix.IP_PMTUDISC_OMIT {
						t.Errorf("IPv4 socket: IP_MTU_DISCOVER is %d", v)
					}
				}
			case *unix.SockaddrInet6:
				if v, _ := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER); sa.Port == int(port) {
					found++
					if v != unix.IPV6_PMTUDISC_OMIT {
						t.Errorf("IPv6 socket: IPV6_MTU_DISCOVER is %d", v)
					}
				}
			}
		}
		if found == 0 {
			t.Error("no socket found")
		}
		return err
	})
}

func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	l := logger(slog.New(slog.NewTextHandler(&out, nil)))
	for range 1000 {
		l.Errorf("write failed: %v", "EIO")
		l.Errorf("another")
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one of each", n)
	}
}
