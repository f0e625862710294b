package tunnel

import (
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// bind is WireGuard's UDP bind with path MTU discovery off. With it on, a path
// whose MTU is smaller than ours makes the kernel refuse whole batches of
// packets: ping works and TCP hangs. Without it routers fragment.
type bind struct {
	conn.Bind
	log    *slog.Logger
	narrow sync.Once
}

func newBind(log *slog.Logger) conn.Bind { return &bind{Bind: conn.NewStdNetBind(), log: log} }

// Open opens the sockets and sets them up.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	if err != nil {
		return fns, actual, err
	}
	if n := noPathMTU(actual); n == 0 {
		b.log.Warn("path MTU discovery could not be switched off; connections may hang where a link's MTU is below 1500")
	}
	return fns, actual, nil
}

// Send sends packets to a peer. Where our own link carries less than the tunnel
// was told, the kernel refuses a batch but takes the packets one by one, and
// fragments them. Some go twice then; WireGuard's replay window drops those.
func (b *bind) Send(bufs [][]byte, to conn.Endpoint) error {
	err := b.Bind.Send(bufs, to)
	if len(bufs) < 2 || !errors.Is(err, unix.EMSGSIZE) {
		return err
	}
	b.narrow.Do(func() {
		b.log.Warn("a link's MTU is below the tunnel's; packets go in fragments, which is slow", "peer", to.DstToString())
	})
	for i := range bufs {
		if err := b.Bind.Send(bufs[i:i+1], to); err != nil {
			return err
		}
	}
	return nil
}

// SetMark sets none. Rivulet marks no packets, and the only other thing that
// Device.BindSetMark does is what the server wants when the host has moved:
// forget from which of our addresses each peer was answered last.
func (*bind) SetMark(uint32) error { return nil }

// noPathMTU sets the option on this process's UDP sockets on the port and
// returns how many there were. WireGuard's bind does not give its sockets away;
// this process has no other on that port.
func noPathMTU(port uint16) (n int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_DGRAM {
			continue
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			if sa.Port == int(port) && unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT) == nil {
				n++
			}
		case *unix.SockaddrInet6:
			if sa.Port == int(port) && unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_OMIT) == nil {
				n++
			}
		}
	}
	return n
}
