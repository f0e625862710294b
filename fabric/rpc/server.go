package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/netmon"
)

// NewServer returns a server that outlives bad clients: what they may send is
// bounded in size and time, and what a handler panics with stays in its request.
// Bodies and answers are not timed: streams last.
func NewServer(id Identity, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		TLSConfig:         ServerTLS(id),
		ReadHeaderTimeout: 5 * time.Second, // bounds the TLS handshake too
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(quiet{log.Handler()}, slog.LevelDebug),
	}
}

// unheard is how long what was sent may be without an answer from the other side's
// kernel before its connection ends. A device whose power goes says no goodbye, and its
// firewall answers nothing for connections of an earlier life: without this its
// streams would be held open here for a quarter of an hour.
const unheard = 20 * time.Second

// Listen opens the control port on all addresses.
func Listen(port uint16) (net.Listener, error) {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, &Error{
			Code:    "control-port",
			Message: fmt.Sprintf("the control port TCP %d cannot be opened (%s%s)", port, reason(err), netmon.Listener("tcp", int(port))),
			Cure:    "stop that program; peers stay unreachable until then, and it is tried again every few seconds",
		}
	}
	return mortal{l}, nil
}

// mortal gives each accepted connection its bound; they do not inherit it.
type mortal struct{ net.Listener }

func (m mortal) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if raw, err := c.(*net.TCPConn).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // one that is refused lives a little longer
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

// quiet hands the chatter of net/http about every port scan to debug level, one
// line each.
type quiet struct{ slog.Handler }

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Message = strings.TrimSpace(r.Message)
	return q.Handler.Handle(ctx, r)
}
