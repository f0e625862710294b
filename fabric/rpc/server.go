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
	return l, nil
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
