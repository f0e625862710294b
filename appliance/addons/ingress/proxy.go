package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// Timeouts of connections to pods.
const (
	dialTimeout = 3 * time.Second
	tries       = 3 // pods that are tried for one request
	// answerTimeout is how long a pod may take to begin its answer.
	answerTimeout = 5 * time.Minute
	podIdle       = 30 * time.Second
	bufferSize    = 32 << 10
)

// backendKey is the key of the backend in a request's context.
type backendKey struct{}

func newProxy(to http.RoundTripper, log *slog.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: to, BufferPool: &buffers{}, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "pod" // upstream replaces the host
			r.Out.URL.RawQuery = r.In.URL.RawQuery           // the pod parses it, not this proxy
			r.Out.Host = r.In.Host
			clean(r.Out.Header)
			r.SetXForwarded()
			if from, err := netip.ParseAddrPort(r.In.RemoteAddr); err == nil {
				r.Out.Header.Set("X-Real-Ip", from.Addr().Unmap().String())
				r.Out.Header.Set("X-Forwarded-For", from.Addr().Unmap().String())
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the client has gone
			}
			log.Debug("a request was not answered by its pods", "host", r.Host, "err", err)
			http.Error(w, "the pods of this do not answer", http.StatusBadGateway)
		},
	}
}

// clean removes a client's headers about earlier proxies, in every spelling that a program may accept.
func clean(h http.Header) {
	for name := range h {
		plain := textproto.CanonicalMIMEHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if strings.HasPrefix(plain, "X-Forwarded-") || plain == "X-Forwarded" || plain == "Forwarded" || plain == "X-Real-Ip" {
			delete(h, name)
		}
	}
}

// upstream sends requests to the endpoints of their backends.
type upstream struct {
	reaches func(netip.Addr) bool
	connect func(ctx context.Context, network, address string) (net.Conn, error)
	http1   *http.Transport
	http2   *http.Transport
}

func newUpstream(reaches func(netip.Addr) bool) *upstream {
	u := &upstream{reaches: reaches, connect: (&net.Dialer{Timeout: dialTimeout}).DialContext}
	u.http1 = &http.Transport{
		DialContext: u.dial, DisableCompression: true, MaxIdleConns: 64, MaxIdleConnsPerHost: 16, IdleConnTimeout: podIdle,
		ResponseHeaderTimeout: answerTimeout, MaxResponseHeaderBytes: 256 << 10, ExpectContinueTimeout: time.Second,
	}
	u.http2 = u.http1.Clone()
	u.http2.Protocols = new(http.Protocols)
	u.http2.Protocols.SetUnencryptedHTTP2(true)
	return u
}

func (u *upstream) close() {
	u.http1.CloseIdleConnections()
	u.http2.CloseIdleConnections()
}

// unreached is an error before anything was sent.
type unreached struct{ error }

func (u unreached) Unwrap() error { return u.error }

var errNoPod = errors.New("ingress: the address leads to no pod")

// dial connects to pods only.
func (u *upstream) dial(ctx context.Context, network, address string) (net.Conn, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !u.reaches(at.Addr()) {
		return nil, unreached{fmt.Errorf("%w: %s", errNoPod, address)}
	}
	c, err := u.connect(ctx, network, address)
	if err != nil {
		return nil, unreached{err}
	}
	return c, nil
}

// RoundTrip sends a request to the next endpoint in turn, and to another one if it cannot be reached.
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	b, _ := r.Context().Value(backendKey{}).(*backend)
	if b == nil {
		return nil, errNoPod
	}
	transport := u.http1
	if b.h2c {
		transport = u.http2
	}
	err := errNoPod
	for i, e := range b.inTurn(time.Now()) {
		if i == tries {
			break
		}
		attempt := r.Clone(r.Context())
		attempt.URL.Host = e.addr.String()
		if r.Body != nil && r.Body != http.NoBody {
			attempt.Body = keptOpen{r.Body}
		}
		var answer *http.Response
		if answer, err = transport.RoundTrip(attempt); err == nil {
			return answer, nil
		}
		if !errors.As(err, new(unreached)) || r.Context().Err() != nil {
			return nil, err
		}
		e.failed.Store(time.Now().UnixNano())
	}
	return nil, err
}

// keptOpen is a body that a transport does not close if it sent nothing.
type keptOpen struct{ io.Reader }

func (keptOpen) Close() error { return nil }

// buffers are those that answers are copied with.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if have, ok := b.pool.Get().(*[]byte); ok {
		return *have
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(used []byte) { b.pool.Put(&used) }
