package wgdev

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// paced is a bind that counts the packets inside WireGuard, in each direction, and reads only while flow permits.
type paced struct {
	conn.Bind
	in, out  *flow
	rest     *rest
	sessions sessions
}

func (b *paced) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	fns, actual, err := b.Bind.Open(port)
	paced := make([]conn.ReceiveFunc, len(fns))
	for i, receive := range fns {
		buffers := reader{of: b.rest}
		paced[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			b.in.wait()
			buffers.before(packets)
			n, err := receive(packets, sizes, from)
			b.in.enter(b.sessions.count(packets, sizes[:max(n, 0)]))
			return n, err
		}
	}
	return paced, actual, err
}

func (b *paced) Send(bufs [][]byte, to conn.Endpoint) error {
	b.sessions.sent(bufs)
	err := b.Bind.Send(bufs, to)
	b.out.weigh(bufs)
	b.out.leave(len(bufs))
	return err
}

// WireGuard's messages, as far as they can be read without a key.
const (
	initiation, response, transport = 1, 2, 4

	emptyTransport = 32 // bytes of one without contents: a keepalive
	// sessionLife is longer than WireGuard accepts packets for a session.
	sessionLife = 10 * time.Minute
)

// sessions are the receiver numbers of this device's handshakes, which peers write to. Packets of strangers have other
// numbers, and must not count: they never reach the TUN, and could fill the flow and block everybody.
type sessions struct {
	numbers atomic.Pointer[map[uint32]time.Time] // never written to
}

// sent records the numbers of handshakes that leave.
func (s *sessions) sent(bufs [][]byte) {
	for _, b := range bufs {
		if len(b) < 8 || b[0] != initiation && b[0] != response {
			continue
		}
		for {
			old := s.numbers.Load()
			next := map[uint32]time.Time{binary.LittleEndian.Uint32(b[4:]): time.Now()}
			if old != nil {
				for n, at := range *old {
					if time.Since(at) < sessionLife {
						next[n] = at
					}
				}
			}
			if s.numbers.CompareAndSwap(old, &next) {
				break
			}
		}
	}
}

// count returns how many of the packets are of a session and not empty.
func (s *sessions) count(packets [][]byte, sizes []int) (n int) {
	known := s.numbers.Load()
	if known == nil {
		return 0
	}
	for i, size := range sizes {
		if size > emptyTransport && packets[i][0] == transport {
			if _, ok := (*known)[binary.LittleEndian.Uint32(packets[i][4:])]; ok {
				n++
			}
		}
	}
	return n
}
