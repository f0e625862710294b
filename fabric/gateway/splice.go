package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of concurrent flows. A TCP flow holds two buffers of copySize beside those of its sockets; a UDP flow two
// packets.
const (
	maxTCP   = 1024
	maxUDP   = 512
	copySize = segments
	// maxOpening bounds the connections of home that wait for their pod.
	maxOpening = 256
	dialLimit  = 10 * time.Second
	// An idle UDP flow ends after this: sooner if it was one query and its answer.
	udpOnce, udpIdle = 30 * time.Second, 3 * time.Minute
	maxDatagram      = 64 << 10
)

type flows struct {
	tcp, udp atomic.Int64
	refused  atomic.Uint64
}

// enter takes a place; leave releases it.
func (f *flows) enter(n *atomic.Int64, most int64) bool {
	if n.Add(1) > most {
		n.Add(-1)
		f.refused.Add(1)
		return false
	}
	return true
}

// ended returns when there is no TCP flow, or after the limit.
func (f *flows) ended(limit time.Duration) {
	for end := time.Now().Add(limit); f.tcp.Load() > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// halfCloser is a connection whose directions close separately.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, copySize); return &b }}

// abort closes a connection with a reset. An end would tell the other side that it has everything.
func abort(c halfCloser) {
	switch c := c.(type) {
	case *net.TCPConn:
		c.SetLinger(0) //nolint:errcheck // it is closed either way
	case *stackConn:
		c.ep.Abort()
	}
	c.Close()
}

// splice copies between two connections until both directions have ended, one fails, or ctx ends. It closes both: with a
// reset the one that has not been given everything.
func splice(ctx context.Context, a, b halfCloser) {
	defer a.Close()
	defer b.Close()
	defer context.AfterFunc(ctx, func() { abort(a); abort(b) })()
	var wholeA, wholeB atomic.Bool // it has all that was for it
	fail := func() {
		for c, whole := range map[halfCloser]bool{a: wholeA.Load(), b: wholeB.Load()} {
			if whole {
				c.Close()
			} else {
				abort(c)
			}
		}
	}
	var both sync.WaitGroup
	one := func(to, from halfCloser, whole *atomic.Bool) {
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		// Hides ReadFrom and WriteTo, which allocate buffers of their own size.
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{gathering(from)}, *buf)
		if err != nil || to.CloseWrite() != nil {
			fail()
			return
		}
		whole.Store(true)
	}
	both.Go(func() { one(a, b, &wholeA) })
	both.Go(func() { one(b, a, &wholeB) })
	both.Wait()
}

// gathering reads larger pieces from a socket that has much: each becomes a packet of the tunnel.
func gathering(c net.Conn) io.Reader {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c // the stack's, which gives what it has
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	return &gathered{tcp, raw}
}

type gathered struct {
	*net.TCPConn
	raw syscall.RawConn
}

const (
	// gatherFrom is the least that is worth a second look, bytes: messages pass as they come.
	gatherFrom = 8 << 10
	// gatherTries bounds the looks for more. Before each others work, which takes no time when there is nothing to do.
	gatherTries = 3
)

// Read waits for the first bytes alone.
func (g *gathered) Read(b []byte) (int, error) {
	n, err := g.TCPConn.Read(b)
	for try := 0; err == nil && try < gatherTries && n >= gatherFrom && n < len(b)*3/4; try++ {
		runtime.Gosched()
		var more int
		var failed error
		if err := g.raw.Read(func(fd uintptr) bool {
			more, failed = unix.Read(int(fd), b[n:])
			return true
		}); err != nil {
			return n, err
		}
		if failed != nil && !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR) {
			return n, failed
		}
		if more == 0 {
			return n, nil // the end, which the next Read reports
		}
		n += max(more, 0)
	}
	return n, err
}

// exchange copies datagrams between two connected sockets until both directions have been idle for a while. It closes
// both.
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
					continue // the other direction was active
				}
				break
			}
			if err != nil {
				break // perhaps the port is closed
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
