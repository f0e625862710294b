package wgdev

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// bind is WireGuard's UDP bind with path MTU discovery off. With it on, a path with a smaller MTU than the link's makes
// the kernel refuse whole batches of packets: ping works and TCP hangs. Without it routers fragment.
type bind struct {
	conn.Bind
	log    *slog.Logger
	narrow sync.Once

	mu  sync.Mutex
	six int // a duplicate of the IPv6 socket's descriptor; 0 is none
}

// NewBind returns such a bind.
func NewBind(log *slog.Logger) conn.Bind { return &bind{Bind: conn.NewStdNetBind(), log: log} }

// Open opens the sockets and sets their options.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	if err != nil {
		return fns, actual, err
	}
	n, six := noPathMTU(actual)
	b.mu.Lock()
	b.six = six
	b.mu.Unlock()
	if n == 0 {
		b.log.Warn("path MTU discovery could not be switched off; connections may hang where a link's MTU is below 1500")
	}
	return fns, actual, nil
}

// Send sends packets to a peer. Where the local link fits less than the tunnel's MTU, the kernel refuses a batch but
// accepts single packets, and fragments them. Some are sent twice then; WireGuard's replay window drops those. Kernels
// before 2025 (6.14, and their stable releases) refuse with EINVAL: udp_send_skb in Linux's net/ipv4/udp.c.
func (b *bind) Send(bufs [][]byte, to conn.Endpoint) error {
	if e, ok := to.(*conn.StdNetEndpoint); ok && e.Addr().Zone() != "" && !e.SrcIP().IsValid() {
		return b.onLink(bufs, e)
	}
	err := b.Bind.Send(bufs, to)
	if len(bufs) < 2 || !errors.Is(err, unix.EMSGSIZE) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	for i := range bufs {
		if err := b.Bind.Send(bufs[i:i+1], to); err != nil {
			return err // it was no matter of size
		}
	}
	b.narrow.Do(func() {
		b.log.Warn("a link's MTU is below the tunnel's; packets go in fragments, which is slow", "peer", to.DstToString())
	})
	return nil
}

// onLink sends to a link-local address of which only the interface is known. Once the peer has answered, the endpoint
// has the local address too, and WireGuard's bind can send.
func (b *bind) onLink(bufs [][]byte, to *conn.StdNetEndpoint) error {
	link, err := net.InterfaceByName(to.Addr().Zone())
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.six == 0 {
		return unix.EAFNOSUPPORT
	}
	sa := &unix.SockaddrInet6{Port: int(to.Port()), ZoneId: uint32(link.Index), Addr: to.Addr().As16()}
	for _, buf := range bufs {
		if err := unix.Sendto(b.six, buf, 0, sa); err != nil {
			return err
		}
	}
	return nil
}

func (b *bind) Close() error {
	b.mu.Lock()
	if b.six != 0 {
		unix.Close(b.six)
		b.six = 0
	}
	b.mu.Unlock()
	return b.Bind.Close()
}

// SetMark sets none. Rivulet marks no packets. The other effect of Device.BindSetMark is needed when the host has
// moved: it forgets from which local address each peer was answered last.
func (*bind) SetMark(uint32) error { return nil }

// noPathMTU sets the option on this process's UDP sockets on the port and returns their number, and a duplicate of the
// IPv6 one. WireGuard's bind does not expose its sockets; this process has no other on that port.
func noPathMTU(port uint16) (n, six int) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0
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
			if sa.Port != int(port) {
				continue
			}
			if unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_OMIT) == nil {
				n++
			}
			six = fd
		}
	}
	if six != 0 {
		if six, err = unix.FcntlInt(uintptr(six), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			six = 0
		}
	}
	return n, six
}
