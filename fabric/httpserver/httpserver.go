// Package httpserver makes every HTTP server of the product, with the bounds of its listener from one table (Table), so
// that nobody who reaches a listener takes the memory of the process or the places of others.
//
//	connections   for each party, by package connlimit; what is too much is closed
//	streams       requests at once of one HTTP/2 connection; strangers get HTTP/1.1
//	headers       bytes of one request; a Gate bounds requests under way and their headers for each party
//	progress      Stall for each piece of a request or an answer, Whole for all of it; a handler's own deadline holds, too
//	log           lines about bad clients, 30 of one text a minute (package logbound)
//
// An answer may last: a watch, a log or a session has no limit while neither end owes the other a byte.
//
// It reads the clock, and writes nothing. After a restart everything is counted anew.
package httpserver

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"rivulet/fabric/connlimit"
	"rivulet/fabric/logbound"
)

// New returns a server with the bounds for h. The caller sets what else it needs: TLSConfig, contexts.
func New(b Bounds, h http.Handler, log *slog.Logger) *http.Server {
	if b.Stall > 0 {
		h = patient{h, b.Stall}
	}
	s := &http.Server{
		Handler: h, MaxHeaderBytes: b.Header, ReadHeaderTimeout: b.Begin, IdleTimeout: b.Idle, ReadTimeout: b.Whole, WriteTimeout: b.Whole,
		ErrorLog: slog.NewLogLogger(failures{logbound.Handler(log.Handler())}, slog.LevelDebug),
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: b.Streams, MaxReceiveBufferPerConnection: received, MaxReceiveBufferPerStream: received},
	}
	if b.Streams == 0 {
		s.Protocols = new(http.Protocols)
		s.Protocols.SetHTTP1(true)
	}
	return s
}

// failures gives what net/http says about clients one text, by which it is counted.
type failures struct{ slog.Handler }

func (f failures) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, "a client failed", 0)
	out.AddAttrs(slog.String("err", strings.TrimSpace(r.Message)))
	return f.Handler.Handle(ctx, out)
}

// received bounds the bytes of requests that one HTTP/2 connection sends before they are read.
const received = 512 << 10

// Listen returns l with the bounds of connections. All who connect are strangers until connlimit.Known or Lasting.
func (b Bounds) Listen(l net.Listener) net.Listener {
	if b.Most > 0 {
		l = netutil.LimitListener(l, b.Most)
	}
	if b.Conns != (connlimit.Limits{}) {
		l = connlimit.Listen(l, func(netip.Addr) bool { return false }, connlimit.Side{Limits: b.Conns}, connlimit.Side{})
	}
	return l
}

// patient ends a request whose client neither sends nor takes a byte that is due for stall.
type patient struct {
	http.Handler
	stall time.Duration
}

func (p patient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := &answer{ResponseWriter: w, control: http.NewResponseController(w), stall: p.stall}
	defer out.leave()
	has := r.Body != nil && r.Body != http.NoBody
	if has {
		r = r.WithContext(r.Context()) // the server keeps its own, and its body
		r.Body = &body{r.Body, out}
	}
	if r.ProtoMajor == 2 {
		p.Handler.ServeHTTP(out, r)
		if out.wrote {
			out.Flush()
		}
		// A deadline that is set here would outlive the stream, and hold its connection.
		_ = out.SetReadDeadline(time.Time{})
		_ = out.SetWriteDeadline(time.Time{})
		return
	}
	defer func() { out.until(time.Now().Add(2 * p.stall)) }() // the server sends the rest
	if has {
		defer func() { out.receive(time.Now().Add(min(p.stall, piece))) }() // and reads it before
	}
	p.Handler.ServeHTTP(out, r)
}

// answer limits each write, and nothing between two of them.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	wrote   bool // something of a body, which the client may not take

	mu                sync.Mutex
	taken             bool      // the connection is the handler's, or the server's again
	readBy, writtenBy time.Time // the handler's own deadlines; zero is none
}

// leave is for a body that somebody reads after the handler: HTTP/2 has no answer then.
func (a *answer) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken = true
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) Write(b []byte) (int, error) {
	a.wrote = true
	a.begin()
	defer a.rest()
	return a.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error {
	a.begin()
	defer a.rest()
	return a.control.Flush()
}

// Flush is for callers that find it by a type assertion.
func (a *answer) Flush() { _ = a.FlushError() }

// Hijack is for http.ResponseController, and for callers that find it by a type assertion. The connection has no limits
// of this package then.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := a.control.Hijack()
	if err == nil {
		a.leave()
	}
	return c, rw, err
}

func (a *answer) begin() { a.until(time.Now().Add(a.stall)) }
func (a *answer) rest()  { a.until(time.Time{}) }

// SetWriteDeadline is for http.ResponseController: a handler's own deadline holds beside those of pieces.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken {
		return http.ErrNotSupported
	}
	a.writtenBy = t
	return a.control.SetWriteDeadline(t)
}

// SetReadDeadline is likewise.
func (a *answer) SetReadDeadline(t time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken {
		return http.ErrNotSupported
	}
	a.readBy = t
	return a.control.SetReadDeadline(t)
}

func (a *answer) until(t time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.taken {
		_ = a.control.SetWriteDeadline(earlier(t, a.writtenBy)) // every connection of a server has one
	}
}

func (a *answer) receive(until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.taken {
		_ = a.control.SetReadDeadline(earlier(until, a.readBy)) // as above
	}
}

// earlier returns the first of two deadlines; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// piece is the longest wait for a piece of a request: whoever sends one has it.
const piece = 2 * time.Minute

// body limits each read of a request's body.
type body struct {
	io.ReadCloser
	of *answer
}

func (b *body) Read(p []byte) (int, error) {
	b.of.receive(time.Now().Add(min(b.of.stall, piece)))
	n, err := b.ReadCloser.Read(p)
	b.of.receive(time.Time{})
	return n, err
}
