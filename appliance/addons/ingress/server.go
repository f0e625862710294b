package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"rivulet/appliance/health"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/netmon"
)

const (
	// maxRequests bounds the requests of all clients under way.
	maxRequests = 1024
	// again is the pause before the next attempt to listen on a port that another program holds.
	again = 2 * time.Second
)

// server listens, finds the backend of a request and forwards it.
type server struct {
	cfg   Config
	table atomic.Pointer[table]
	slots chan struct{}
	proxy *httputil.ReverseProxy
	pods  *upstream
	// bounds are httpserver.Ingress; tests have others.
	bounds httpserver.Bounds
}

func newServer(cfg Config) *server {
	s := &server{cfg: cfg, slots: make(chan struct{}, maxRequests), pods: newUpstream(cfg.Reaches), bounds: httpserver.Ingress}
	s.proxy = newProxy(s.pods, cfg.Log)
	return s
}

// run listens until ctx ends, which also ends upgraded connections.
func (s *server) run(ctx context.Context) {
	s.cfg.Page.Lend(true)
	defer s.cfg.Page.Lend(false)
	defer s.cfg.Health.Replace(health.IngressPort, nil)
	defer s.pods.close()
	defer s.table.Store(nil) // an old one must not be served after the next start
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

// keep listens on a port, and retries while another program holds it.
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
			wait = pause // the status page is about to free it
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
	l = s.bounds.Listen(l)
	web := httpserver.New(s.bounds, s, s.cfg.Log)
	web.BaseContext = func(net.Listener) context.Context { return ctx }
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

// certificate selects one by SNI. Without one for that name the handshake fails, because no browser would accept
// another.
func (s *server) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if t := s.table.Load(); t != nil {
		if c := t.certificate(hostOf(hello.ServerName)); c != nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("ingress: no certificate for %.100q", hello.ServerName)
}

// ServeHTTP forwards a request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		return
	}
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
	s.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), backendKey{}, to)))
}

// hostOf normalizes a host for tables: without port and trailing dot.
func hostOf(s string) string {
	if h, _, err := net.SplitHostPort(s); err == nil {
		s = h
	}
	return strings.ToLower(strings.TrimSuffix(s, "."))
}

// plain reports whether a path has no dot segments, which a pod could resolve in another way than the rules.
func plain(path string) bool {
	for element := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if element == "." || element == ".." {
			return false
		}
	}
	return true
}
