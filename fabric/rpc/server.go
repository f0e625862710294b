package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/httpserver"
	"rivulet/fabric/netmon"
)

// NewServer returns a server with the bounds that survives bad clients: a handler's panic ends only its request.
func NewServer(b httpserver.Bounds, id Identity, h http.Handler, log *slog.Logger) *http.Server {
	s := httpserver.New(b, h, log)
	s.TLSConfig = ServerTLS(id)
	return s
}

// unheard bounds how long sent data may be unacknowledged before its connection ends. A device that loses power sends
// no goodbye, and after a restart its firewall drops packets of old connections: without this bound its streams would
// stay open here for a quarter of an hour.
const unheard = 20 * time.Second

// Listen opens the control port on all addresses.
func Listen(port uint16) (net.Listener, error) {
	keep := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 75 * time.Second, Interval: 15 * time.Second, Count: 4}}
	l, err := keep.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, &Error{
			Code:    "control-port",
			Message: fmt.Sprintf("the control port TCP %d cannot be opened (%s%s)", port, reason(err), netmon.Listener("tcp", int(port))),
			Cure:    "stop that program; peers stay unreachable until then, and it is tried again every few seconds",
		}
	}
	return Mortal(l), nil
}

// Mortal sets that bound on the connections of a TCP listener.
func Mortal(l net.Listener) net.Listener { return mortal{l} }

// mortal sets that bound on each accepted connection; connections do not inherit it.
type mortal struct{ net.Listener }

func (m mortal) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if raw, err := c.(*net.TCPConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // one that refuses lives a little longer
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unheard.Milliseconds()))
		})
	}
	return c, nil
}

func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err.Error()
}
