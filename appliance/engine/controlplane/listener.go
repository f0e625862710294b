package controlplane

import (
	"net"
	"sync"
)

// joined accepts from the inner listener at once, from the public one between open and shut. Earlier connections wait
// in the kernel, their TLS hello unanswered.
type joined struct {
	inner, public net.Listener
	conns         chan net.Conn
	ended         chan struct{}
	once, shutter sync.Once
}

func join(inner, public net.Listener) *joined {
	j := &joined{inner: inner, public: public, conns: make(chan net.Conn), ended: make(chan struct{})}
	go j.pump(inner)
	return j
}

func (j *joined) open() { go j.pump(j.public) }

// shut ends accepting from outside.
func (j *joined) shut() { j.shutter.Do(func() { j.public.Close() }) }

func (j *joined) pump(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		select {
		case j.conns <- c:
		case <-j.ended:
			c.Close()
			return
		}
	}
}

// Accept implements net.Listener.
func (j *joined) Accept() (net.Conn, error) {
	select {
	case c := <-j.conns:
		return c, nil
	case <-j.ended:
		return nil, net.ErrClosed
	}
}

// Close ends both.
func (j *joined) Close() error {
	j.once.Do(func() { close(j.ended) })
	j.shut()
	return j.inner.Close()
}

// Addr is the inner address, for the API server's own clients.
func (j *joined) Addr() net.Addr { return j.inner.Addr() }
