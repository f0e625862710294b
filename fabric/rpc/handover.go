package rpc

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
)

// Handover takes connections for another protocol than HTTP from a TLS server before it has answered: the receiver
// begins TLS itself, with the bytes already read.
type Handover struct {
	// Protocol is the requested protocol, by ALPN.
	Protocol string
	// To takes the connection over. It must neither close nor keep conn: it copies its descriptor.
	To func(conn net.Conn, begun []byte) error
}

// Listen records the first bytes of l's connections. It has to be the outermost listener.
func (h Handover) Listen(l net.Listener) net.Listener { return watchedListener{l} }

// Watch makes the server of config hand over. It is for servers on a listener of Listen.
func (h Handover) Watch(config *tls.Config) {
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		w, ok := hello.Conn.(*watched)
		if !ok {
			return nil, nil
		}
		begun := w.decide()
		if !slices.Contains(hello.SupportedProtos, h.Protocol) {
			return nil, nil
		}
		w.mute()
		if err := h.To(innermost(w), begun); err != nil {
			return nil, err
		}
		return nil, errHandedOver
	}
}

var errHandedOver = errors.New("rpc: the connection is another's now")

type watchedListener struct{ net.Listener }

func (l watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watched{Conn: c, watching: true}, nil
}

// maxBegun bounds the recorded bytes; a connection that sends more before a decision is HTTP's.
const maxBegun = 32 << 10

// watched is a connection whose first bytes are recorded.
type watched struct {
	net.Conn
	mu       sync.Mutex
	begun    []byte
	watching bool
	muted    bool
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watching {
		w.begun = append(w.begun, b[:n]...)
		if len(w.begun) > maxBegun {
			w.begun, w.watching = nil, false
		}
	}
	return n, err
}

// Write discards the server's alert after the connection was handed over.
func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	muted := w.muted
	w.mu.Unlock()
	if muted {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

func (w *watched) NetConn() net.Conn { return w.Conn }

func (w *watched) decide() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	begun := w.begun
	w.begun, w.watching = nil, false
	return begun
}

func (w *watched) mute() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = true
}

func innermost(c net.Conn) net.Conn {
	for {
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = below.NetConn()
	}
}
