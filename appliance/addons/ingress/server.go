package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/netmon"
)

// What clients may cost.
const (
	maxConnections = 256 // of each port
	maxPerClient   = 128 // of one address, of each port
	maxRequests    = 1024
	maxStreams     = 64 // requests at once in one connection of HTTP/2
	maxHeader      = 32 << 10
	headerTimeout  = 10 * time.Second
	idleTimeout    = time.Minute
	// stall is how long a client may neither take nor send a byte that is waited for.
	stall = time.Minute
	// again is the pause before a port that another program has is tried again.
	again = 2 * time.Second
)

// server listens, finds the backend of a request and passes it on.
type server struct {
	cfg   Config
	table atomic.Pointer[table]
	slots chan struct{}
	proxy *httputil.ReverseProxy
	pods  *upstream
	stall time.Duration
}

func newServer(cfg Config) *server {
	s := &server{cfg: cfg, slots: make(chan struct{}, maxRequests), pods: newUpstream(cfg.Reaches), stall: stall}
	s.proxy = newProxy(s.pods, cfg.Log)
	return s
}

// run listens until ctx ends. Connections that were upgraded end then, too.
func (s *server) run(ctx context.Context) {
	s.cfg.Page.Lend(true)
	defer s.cfg.Page.Lend(false)
	defer s.cfg.Health.Replace(health.IngressPort, nil)
	defer s.pods.close()
	defer s.table.Store(nil) // an old one is not served when this is switched on again
	var running sync.WaitGroup
	defer running.Wait()
	var mu sync.Mutex
	problems := map[string][2]string{}
	for _, port := range s.cfg.Ports {
		running.Go(func() {
			s.keep(ctx, port, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				delete(problems, fmt.Sprint(port))
				if err != nil {
					problems[fmt.Sprint(port)] = [2]string{err.Error() + ", so no Ingress is served there", "free the port, or set ingress: false"}
				}
				s.cfg.Health.Replace(health.IngressPort, problems)
			})
		})
	}
}

// keep listens on a port, and tries again while another program has it.
func (s *server) keep(ctx context.Context, port int, report func(error)) {
	for first := true; ctx.Err() == nil; first = false {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			report(nil)
			s.cfg.Log.Info("Ingresses are served", "port", port)
			s.serve(ctx, port, l)
			continue
		}
		wait := again
		if first {
			wait = pause // the status page leaves it at this moment
		} else {
			report(taken(port, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

func taken(port int, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d/tcp is taken%s", port, netmon.Listener("tcp", port))
	}
	return fmt.Errorf("port %d/tcp: %w", port, err)
}

// serve serves a listener until ctx ends.
func (s *server) serve(ctx context.Context, port int, l net.Listener) {
	limits := connlimit.Side{Limits: connlimit.Limits{Strangers: maxConnections, PerSource: maxPerClient, PerOwner: maxPerClient}}
	l = connlimit.Listen(l, func(netip.Addr) bool { return false }, limits, connlimit.Side{})
	web := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	end := context.AfterFunc(ctx, func() { web.Close() })
	defer end()
	var err error
	if port == s.cfg.Ports[1] {
		web.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.certificate}
		err = web.ServeTLS(l, "", "")
	} else {
		err = web.Serve(l)
	}
	web.Close()
	if ctx.Err() == nil {
		s.cfg.Log.Warn("a port is not served any more, listening again", "port", port, "err", err)
	}
}

// certificate picks one by SNI. Without one for that name there is no connection: no
// browser would believe another.
func (s *server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if t := s.table.Load(); t != nil {
		if c := t.certificate(hostOf(hello.ServerName)); c != nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("ingress: no certificate for %.100q", hello.ServerName)
}

// ServeHTTP passes a request on.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		return
	}
	control := http.NewResponseController(w)
	control.SetWriteDeadline(time.Now().Add(s.stall)) //nolint:errcheck // every connection of a server has one
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		http.Error(w, "this method is not passed on", http.StatusMethodNotAllowed)
		return
	case !plain(r.URL.Path):
		http.Error(w, "the path has . or .. in it", http.StatusBadRequest)
		return
	}
	t := s.table.Load()
	if t == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "Ingresses are not known yet", http.StatusServiceUnavailable)
		return
	}
	to := t.find(hostOf(r.Host), cmp.Or(r.URL.Path, "/"))
	switch {
	case to != nil:
		s.pass(w, r, to)
	case r.TLS != nil || !s.cfg.Page.Offer(w, r):
		http.Error(w, "no Ingress has this host and path", http.StatusNotFound)
	}
}

func (s *server) pass(w http.ResponseWriter, r *http.Request, to *backend) {
	if len(to.endpoints) == 0 {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no pod is ready for this", http.StatusServiceUnavailable)
		return
	}
	client := &patient{ResponseWriter: w, control: http.NewResponseController(w), stall: s.stall}
	client.rest() // the pod may take its time
	defer client.begin()
	r = r.WithContext(context.WithValue(r.Context(), backendKey{}, to))
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &patientBody{ReadCloser: r.Body, control: client.control, stall: s.stall}
	}
	s.proxy.ServeHTTP(client, r)
}

// hostOf is a host as tables have it: without port and the dot at its end.
func hostOf(s string) string {
	if h, _, err := net.SplitHostPort(s); err == nil {
		s = h
	}
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// plain reports whether a path says where it leads: a pod would resolve dots otherwise
// than rules do.
func plain(path string) bool {
	for element := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if element == "." || element == ".." {
			return false
		}
	}
	return true
}

// patient bounds how long a client may leave bytes of an answer.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patient) Write(b []byte) (int, error) {
	p.begin()
	n, err := p.ResponseWriter.Write(b)
	if err == nil {
		p.rest()
	}
	return n, err
}

// FlushError is for http.ResponseController.
func (p *patient) FlushError() error {
	p.begin()
	err := p.control.Flush()
	if err == nil {
		p.rest()
	}
	return err
}

// begin bounds what is written from now on, rest waits for more without an end. A
// connection that was taken over has no such bounds.
func (p *patient) begin() { p.control.SetWriteDeadline(time.Now().Add(p.stall)) } //nolint:errcheck // as above
func (p *patient) rest()  { p.control.SetWriteDeadline(time.Time{}) }             //nolint:errcheck // as above

// patientBody bounds how long a client may leave bytes of a request out.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	stall   time.Duration
}

func (p *patientBody) Read(b []byte) (int, error) {
	p.control.SetReadDeadline(time.Now().Add(p.stall)) //nolint:errcheck // a connection that was taken over has its own
	n, err := p.ReadCloser.Read(b)
	p.control.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	return n, err
}
