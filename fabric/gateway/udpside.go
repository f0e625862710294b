package gateway

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// udpSide is one sender's part of a UDP socket, as a connection: Read returns the sender's datagrams, Write sends to
// it.
type udpSide struct {
	sock *net.UDPConn
	to   netip.AddrPort
	in   chan []byte // more are dropped
	done chan struct{}
	once sync.Once

	mu  sync.Mutex
	end time.Time // of reading
}

func newUDPSide(sock *net.UDPConn, to netip.AddrPort) *udpSide {
	return &udpSide{sock: sock, to: to, in: make(chan []byte, 64), done: make(chan struct{})}
}

func (u *udpSide) deliver(packet []byte) {
	select {
	case u.in <- packet:
	default:
	}
}

func (u *udpSide) Read(b []byte) (int, error) {
	u.mu.Lock()
	end := u.end
	u.mu.Unlock()
	var timeout <-chan time.Time
	if !end.IsZero() {
		t := time.NewTimer(time.Until(end))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case p := <-u.in:
		return copy(b, p), nil
	case <-u.done:
		return 0, net.ErrClosed
	case <-timeout:
		return 0, os.ErrDeadlineExceeded
	}
}

func (u *udpSide) Write(b []byte) (int, error) { return u.sock.WriteToUDPAddrPort(b, u.to) }

func (u *udpSide) Close() error {
	u.once.Do(func() { close(u.done) })
	return nil
}

func (u *udpSide) SetReadDeadline(t time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end = t
	return nil
}

func (u *udpSide) LocalAddr() net.Addr              { return u.sock.LocalAddr() }
func (u *udpSide) RemoteAddr() net.Addr             { return net.UDPAddrFromAddrPort(u.to) }
func (u *udpSide) SetDeadline(t time.Time) error    { return u.SetReadDeadline(t) }
func (u *udpSide) SetWriteDeadline(time.Time) error { return nil }
