package wgdev

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// whole is a bind that sends marked packets in one piece or not at all (DF), and all others as the bind below does,
// which lets routers fragment them. The kernel has only an option per socket, so others wait while one is sent that
// way; there are a few a minute.
type whole struct {
	conn.Bind
	marks   marks
	sending sync.RWMutex // held to write while the sockets are set to DF
	sockets []socket     // guarded by sending
}

// marks are the buffers whose packets must not be fragmented, by their first byte: a packet is sent from the buffer
// that it was read into. A packet that is dropped in between leaves its mark until the buffer is read into again.
type marks struct {
	n  atomic.Int32
	mu sync.Mutex
	at map[*byte]bool
}

func (m *marks) set(buf []byte, marked bool) {
	if !marked && m.n.Load() == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == nil {
		m.at = map[*byte]bool{}
	}
	if marked {
		m.at[&buf[0]] = true
	} else {
		delete(m.at, &buf[0])
	}
	m.n.Store(int32(len(m.at)))
}

// take reports whether the buffer is marked, and removes the mark.
func (m *marks) take(buf []byte) bool {
	if m.n.Load() == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	marked := m.at[&buf[0]]
	delete(m.at, &buf[0])
	m.n.Store(int32(len(m.at)))
	return marked
}

// socket is one of the bind's, with its option for path MTU discovery.
type socket struct {
	fd, level, option int
	never, always     int // its values
}

// socketsOn returns this process's UDP sockets on the port. WireGuard's bind does not expose its own; this process has
// no other there.
func socketsOn(port uint16) (found []socket) {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_DGRAM {
			continue
		}
		switch sa, _ := unix.Getsockname(fd); sa := sa.(type) {
		case *unix.SockaddrInet4:
			if sa.Port == int(port) {
				found = append(found, socket{fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT, unix.IP_PMTUDISC_PROBE})
			}
		case *unix.SockaddrInet6:
			if sa.Port == int(port) {
				found = append(found, socket{fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_OMIT, unix.IPV6_PMTUDISC_PROBE})
			}
		}
	}
	return found
}

func (b *whole) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	b.sending.Lock()
	defer b.sending.Unlock()
	b.sockets = nil
	if err == nil {
		b.sockets = socketsOn(actual)
	}
	return fns, actual, err
}

func (b *whole) Close() error {
	b.sending.Lock()
	b.sockets = nil // another file may get their numbers soon
	b.sending.Unlock()
	return b.Bind.Close()
}

func (b *whole) Send(bufs [][]byte, to conn.Endpoint) error {
	if b.marks.n.Load() > 0 {
		rest := make([][]byte, 0, len(bufs))
		for i, buf := range bufs {
			if b.marks.take(buf) {
				b.inOnePiece(bufs[i:i+1], to)
			} else {
				rest = append(rest, buf)
			}
		}
		if bufs = rest; len(bufs) == 0 {
			return nil
		}
	}
	b.sending.RLock()
	defer b.sending.RUnlock()
	return b.Bind.Send(bufs, to)
}

const (
	// lockTries bounds how long a marked packet waits for others to be sent: it may be lost, but must not delay them.
	lockTries = 50
	lockPause = 100 * time.Microsecond
)

// inOnePiece sends one packet with DF. A failure because of its size is the expected result of a probe.
func (b *whole) inOnePiece(one [][]byte, to conn.Endpoint) {
	for range lockTries {
		if !b.sending.TryLock() {
			time.Sleep(lockPause)
			continue
		}
		defer b.sending.Unlock()
		for _, s := range b.sockets {
			_ = unix.SetsockoptInt(s.fd, s.level, s.option, s.always)
			defer unix.SetsockoptInt(s.fd, s.level, s.option, s.never) //nolint:errcheck // it could be set before
		}
		_ = b.Bind.Send(one, to)
		return
	}
}
