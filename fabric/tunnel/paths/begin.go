package paths

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// Begin takes a connection on which the peer waits for a stream to begin, and is the client on it. It is for the side
// that was reached without dialling: the connection to a gateway pod is opened from home, through the API server, and
// home's end of it is handed to the tunnel as an incoming one. Begin returns when the other end has proved to be the
// peer; the connection belongs to the manager then.
func (m *Manager) Begin(ctx context.Context, conn net.Conn, public Key) error {
	return m.begin(ctx, conn, public, bareProtocol, StreamProtocol)
}

func (m *Manager) begin(ctx context.Context, conn net.Conn, public Key, protocols ...string) error {
	m.mu.Lock()
	p := m.byKey[public]
	if p == nil {
		m.mu.Unlock()
		conn.Close()
		return errors.New("paths: a stream to somebody who is no peer")
	}
	self, secret := m.self, p.secret
	m.mu.Unlock()
	conn.SetDeadline(time.Now().Add(streamGreet)) //nolint:errcheck // it fails on use
	c := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols,
		InsecureSkipVerify: true, // see stream
	})
	err := c.HandshakeContext(ctx)
	if err == nil {
		err = secret.greet(c, self)
	}
	if err != nil {
		conn.Close()
		return err
	}
	s := &stream{conn: c, begun: true}
	if c.ConnectionState().NegotiatedProtocol == bareProtocol { // otherwise the other end is of an older version
		s.conn, s.whole = conn, true
		if _, err := conn.Write([]byte{bareBegins}); err != nil {
			conn.Close()
			return err
		}
	}
	conn.SetDeadline(time.Time{}) //nolint:errcheck // it fails on use
	// Unlike a dialled stream it is kept beside a direct path, since the other side would need the API server to open
	// it again.
	m.join(p, s, remote(conn))
	return nil
}
