package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// What may go through at a time. A TCP flow holds two buffers of copySize beside
// those of its sockets; a UDP flow two packets.
const (
	maxTCP   = 1024
	maxUDP   = 512
	copySize = 16 << 10
	// maxOpening is how many connections of home may wait for their pod to answer.
	maxOpening = 256
	dialLimit  = 10 * time.Second
	// A UDP flow ends when nothing has gone either way for so long: soon if it was a
	// question and its answer.
	udpOnce, udpIdle = 30 * time.Second, 3 * time.Minute
	maxDatagram      = 64 << 10
)

// flows counts what goes through.
type flows struct {
	tcp, udp atomic.Int64
	refused  atomic.Uint64
}

// enter takes a place; leave gives it back.
func (f *flows) enter(n *atomic.Int64, most int64) bool {
	if n.Add(1) > most {
		n.Add(-1)
		f.refused.Add(1)
		return false
	}
	return true
}

// halfCloser is a connection whose directions end apart.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copySize); return &b }}

// splice carries bytes between two connections until both directions have ended, or
// one fails. It closes both.
func splice(a, b halfCloser) {
	defer a.Close()
	defer b.Close()
	var both sync.WaitGroup
	one := func(to, from halfCloser) {
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		// Without their own ReadFrom and WriteTo, which take buffers of their own size.
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, *buf)
		if err != nil || to.CloseWrite() != nil {
			a.Close()
			b.Close()
		}
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}

// exchange carries datagrams between two connected sockets until nothing has gone
// either way for a while. It closes both.
func exchange(a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	var last atomic.Int64
	var packets atomic.Int64
	last.Store(time.Now().UnixNano())
	one := func(to, from net.Conn) {
		buf := make([]byte, maxDatagram)
		for {
			idle := udpOnce
			if packets.Load() > 2 {
				idle = udpIdle
			}
			end := time.Unix(0, last.Load()).Add(idle)
			from.SetReadDeadline(end) //nolint:errcheck // it fails on use
			n, err := from.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) || isTimeout(err) {
				if time.Since(time.Unix(0, last.Load())) < idle {
					continue // the other way has had something
				}
				break
			}
			if err != nil {
				break // nobody listens there, perhaps
			}
			last.Store(time.Now().UnixNano())
			packets.Add(1)
			if _, err := to.Write(buf[:n]); errors.Is(err, net.ErrClosed) {
				break
			}
		}
		a.Close()
		b.Close()
	}
	var both sync.WaitGroup
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}
