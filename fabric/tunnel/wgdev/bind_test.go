package wgdev

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
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

// batches is a bind of a kernel that refuses batches, or everything, with an error.
type batches struct {
	conn.Bind
	err   error
	every bool
	calls int
	sent  []string
}

func (b *batches) Send(bufs [][]byte, _ conn.Endpoint) error {
	if b.calls++; b.every || len(bufs) > 1 {
		return b.err
	}
	b.sent = append(b.sent, string(bufs[0]))
	return nil
}

// What a narrow link refuses as a batch goes one by one; what it refuses one by one is an error, and any other error is
// told at once.
func TestABatchThatIsRefusedGoesOneByOne(t *testing.T) {
	to := &conn.StdNetEndpoint{AddrPort: netip.MustParseAddrPort("192.0.2.1:7442")}
	for _, c := range []struct {
		err   error
		every bool
		want  string // what went
		calls int
	}{
		{unix.EMSGSIZE, false, "a b c", 4},
		{unix.EINVAL, false, "a b c", 4}, // Debian 12's and Raspberry Pi OS's kernels
		{unix.EINVAL, true, "", 2},
		{unix.ENETUNREACH, false, "", 1},
	} {
		inner := &batches{err: fmt.Errorf("sendmmsg: %w", c.err), every: c.every}
		b := &bind{Bind: inner, log: slog.New(slog.DiscardHandler)}
		err := b.Send([][]byte{[]byte("a"), []byte("b"), []byte("c")}, to)
		if got := strings.Join(inner.sent, " "); got != c.want || inner.calls != c.calls || (err == nil) != (c.want != "") {
			t.Errorf("%v (of every packet: %v): %q in %d calls, %v", c.err, c.every, got, inner.calls, err)
		}
	}
}
