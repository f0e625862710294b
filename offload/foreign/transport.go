// Package foreign judges what those send whom home does not trust: peers, foreign clusters, API servers of virtual
// clusters and of their hosts. Client and Guard make the only clients for them: an answer is bounded in bytes, is never
// decompressed, has no quantity that cannot be computed with, and cannot send the client elsewhere. Kept bounds the
// objects that informers keep. Body judges what others send to an API server of this cluster.
//
// It reads and writes nothing else. Restart: it has no state. Failure: the call, or the watch, has an *Unusable as its
// error, and whatever depends on it is not ready; the process goes on.
package foreign

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

const (
	// MaxAnswer bounds an answer of a foreign API that is neither a watch nor a stream, in bytes. Lists come in pages.
	MaxAnswer = 8 << 20
	// MaxFrame bounds one event of a watch, in bytes: API servers take objects of up to 3 MiB.
	MaxFrame = 4 << 20
	// maxRefusal bounds the text of a refusal, in bytes.
	maxRefusal = 1 << 20
)

// Origin is whose answers are read, for errors.
type Origin struct {
	Name string // "peer ann"
	Cure string // a command that shows more: "rivulet peers"
}

// Unusable is the error for an answer that is not read to its end.
type Unusable struct {
	Origin
	Why string
}

func (e *Unusable) Error() string {
	return fmt.Sprintf("the answer of %s is not understood: %s; see: %s", e.Name, e.Why, e.Cure)
}

// NoProxy is for rest.Config.Proxy: connections are direct, whatever the environment says.
func NoProxy(*http.Request) (*url.URL, error) { return nil, nil }

// Guard makes config, which is complete otherwise, a configuration for the API of another: see the package. Connections
// of its Dial, or of an ordinary dialer, lead to the server of config alone, or to the proxy in front of it.
func Guard(config *rest.Config, from Origin) error {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("address of %s: %w", from.Name, err)
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	allowed := []string{address(server)}
	by, err := proxy(&http.Request{URL: server})
	if err != nil {
		return fmt.Errorf("proxy to %s: %w", from.Name, err)
	}
	if by != nil {
		allowed = append(allowed, address(by))
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	config.Dial = only(config.Dial, from, allowed)
	config.DisableCompression = true
	config.WrapTransport = transport.Wrappers(func(next http.RoundTripper) http.RoundTripper { return &tripper{next, from, false} }, config.WrapTransport)
	return nil
}

// Client is a copy of c for Rivulet's own routes at another: it follows no redirect and takes no compressed answer.
// Their readers bound the answers, some of which are streams without an end.
func Client(c *http.Client, from Origin) *http.Client {
	own := *c
	if own.Transport == nil {
		own.Transport = http.DefaultTransport
	}
	own.Transport = &tripper{own.Transport, from, true}
	return &own
}

// address is the host and port of a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// only dials the allowed addresses.
func only(dial dialer, from Origin, allowed []string) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		for _, a := range allowed {
			if strings.EqualFold(a, addr) {
				return dial(ctx, network, addr)
			}
		}
		return nil, &Unusable{from, fmt.Sprintf("it leads to %.100q, which is not its address", addr)}
	}
}

// tripper bounds the answers of one other; routes: they are those of Client.
type tripper struct {
	http.RoundTripper
	from   Origin
	routes bool
}

// WrappedRoundTripper gives access to idle connections.
func (t *tripper) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t *tripper) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *tripper) RoundTrip(r *http.Request) (*http.Response, error) {
	asked := *r
	if asked.Header = r.Header.Clone(); asked.Header == nil {
		asked.Header = http.Header{}
	}
	asked.Header.Set("Accept-Encoding", "identity") // also keeps Go's transport from asking for gzip, and from inflating it
	resp, err := t.RoundTripper.RoundTrip(&asked)
	if err != nil {
		return nil, err
	}
	if why := t.take(r, resp); why != "" {
		if resp.Body != nil {
			resp.Body.Close()
		}
		return nil, &Unusable{t.from, why}
	}
	return resp, nil
}

// take bounds the answer, or reports why it cannot be used.
func (t *tripper) take(r *http.Request, resp *http.Response) (why string) {
	for _, encoding := range resp.Header.Values("Content-Encoding") {
		if !strings.EqualFold(encoding, "identity") {
			return "it is compressed, which was not asked for"
		}
	}
	watches, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode/100 == 3:
		return fmt.Sprintf("it points elsewhere (HTTP %d)", resp.StatusCode)
	case resp.Uncompressed:
		return "it was compressed, which was not asked for"
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if r.Header.Get("Upgrade") == "" && !upgrades.MatchString(r.URL.Path) {
			return "it changes the protocol, which was not asked for"
		}
	case t.routes || resp.Body == nil:
	case resp.StatusCode == http.StatusOK && watches:
		if kind != runtime.ContentTypeJSON && kind != runtime.ContentTypeProtobuf {
			return notRead
		}
		resp.Body = &frames{ReadCloser: resp.Body, binary: kind == runtime.ContentTypeProtobuf, from: t.from}
	case resp.StatusCode == http.StatusOK && r.Method == http.MethodGet && logs.MatchString(r.URL.Path): // without an end
	case strings.Contains(kind, "yaml"), strings.Contains(kind, "cbor"):
		return notRead
	case resp.ContentLength > MaxAnswer:
		return tooLong
	case resp.StatusCode >= http.StatusBadRequest: // its text is part of errors
		resp.Body = &judged{ReadCloser: &bounded{resp.Body, maxRefusal, t.from}, from: t.from}
	default:
		resp.Body = &judged{ReadCloser: &bounded{resp.Body, MaxAnswer, t.from}, from: t.from}
	}
	return ""
}

var (
	// logs are the requests whose answers are streams without being watches. A pod or a namespace may have any name.
	logs = regexp.MustCompile(`/api/v1/namespaces/[^/]+/pods/[^/]+/log$`)
	// upgrades are the requests whose protocol changes by a header that a later transport sets.
	upgrades = regexp.MustCompile(`/api/v1/namespaces/[^/]+/pods/[^/]+/(exec|attach|portforward)$`)
)

const (
	tooLong = "it is longer than it may be"
	notRead = "it is neither JSON nor protobuf"
)

// bounded ends with an error after left bytes.
type bounded struct {
	io.ReadCloser
	left int64
	from Origin
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, &Unusable{b.from, tooLong}
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, &Unusable{b.from, tooLong}
	}
	return n, err
}

// judged reads the answer as a whole, and ends with an error if it has a quantity that would cost too much.
type judged struct {
	io.ReadCloser
	from Origin
	raw  *bytes.Reader
	err  error
}

func (j *judged) Read(p []byte) (int, error) {
	if j.raw == nil {
		raw, err := io.ReadAll(j.ReadCloser)
		if err == nil && isCostly(raw) {
			err = &Unusable{j.from, ErrQuantity.Error()}
		}
		j.raw, j.err = bytes.NewReader(raw), err
	}
	if j.err != nil {
		return 0, j.err
	}
	return j.raw.Read(p)
}

// isCostly reports whether an answer has a quantity out of bounds, as JSON or as protobuf: who decodes it may do so in
// spite of its type.
func isCostly(raw []byte) bool {
	return errors.Is(message(raw), ErrQuantity) || errors.Is(document(raw, false), ErrQuantity)
}

// frames passes the events of a watch, each as soon as it is complete, and ends with an error in one that is longer than
// MaxFrame, or has a quantity that would cost too much: decoders keep an event as a whole. JSON is followed by its
// brackets, since nothing else ends an event; protobuf has lengths.
type frames struct {
	io.ReadCloser
	from   Origin
	binary bool

	event []byte // what has come of the next one
	ready []byte // complete ones
	err   error  // after these

	depth           int
	quoted, escaped bool
}

// keptBuffer is the capacity of buffers that a watch keeps between events, in bytes.
const keptBuffer = 64 << 10

func (f *frames) Read(p []byte) (int, error) {
	for len(f.ready) == 0 && len(p) > 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := f.ReadCloser.Read(p)
		if f.err = f.take(p[:n]); f.err == nil {
			f.err = err
		}
	}
	n := copy(p, f.ready)
	if f.ready = f.ready[n:]; len(f.ready) == 0 {
		f.ready = nil
	}
	return n, nil
}

// take adds what has come, and makes events ready.
func (f *frames) take(p []byte) error {
	for len(p) > 0 {
		ends := f.brackets
		if f.binary {
			ends = f.lengths
		}
		n, complete := ends(p)
		if n < 0 || len(f.event)+n > MaxFrame+len(length{}) {
			return &Unusable{f.from, "an event of its watch is longer than 4 MiB"}
		}
		f.event, p = append(f.event, p[:n]...), p[n:]
		if !complete {
			continue
		}
		raw := f.event
		if f.binary {
			raw = raw[len(length{}):]
		}
		if isCostly(raw) {
			return &Unusable{f.from, ErrQuantity.Error()}
		}
		f.ready = append(f.ready, f.event...)
		if f.event = f.event[:0]; cap(f.event) > keptBuffer {
			f.event = nil
		}
	}
	return nil
}

// length begins each event of protobuf.
type length [4]byte

// lengths returns how much of p belongs to the event, and whether that completes it; n is -1 for one that is too long.
func (f *frames) lengths(p []byte) (n int, complete bool) {
	var head length
	has := copy(head[:], f.event)
	has += copy(head[has:], p)
	if has < len(head) {
		return len(p), false
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxFrame {
		return -1, false
	}
	left := len(head) + int(size) - len(f.event)
	return min(left, len(p)), left <= len(p)
}

// brackets is lengths for JSON.
func (f *frames) brackets(p []byte) (n int, complete bool) {
	for i, c := range p {
		switch {
		case f.escaped:
			f.escaped = false
		case f.quoted:
			f.escaped, f.quoted = c == '\\', c != '"'
		case c == '"':
			f.quoted = true
		case c == '{' || c == '[':
			f.depth++
		case c == '}' || c == ']':
			if f.depth--; f.depth <= 0 {
				f.depth = 0
				return i + 1, true
			}
		}
	}
	return len(p), false
}
