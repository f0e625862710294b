// Package statuspage is a read-only page for a phone on the LAN (docs/design/status-page.md): plain HTML, available
// before Kubernetes, with no route but GET / and without secrets. It reads the given view and writes nothing. It
// listens on port 80 if that is free, and on Port; this device and hosts on a link of its LANs are admitted. Restart:
// it serves again. Failure: a port in use is reported with a cure and retried.
package statuspage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"rivulet/appliance/ui/summary"
	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/netmon"
)

// The ports: the default of browsers, and one that is free in any case.
const (
	WebPort = 80
	Port    = 7480
)

const (
	pageLife = 2 * time.Second // a page is rendered once in it for all visitors
	again    = 5 * time.Second // pause before the next attempt to listen on a port in use
)

// Config of a Server. All fields must be set but Ports.
type Config struct {
	View func() summary.View
	// Admit reports whether a host may see the page.
	Admit func(netip.Addr) bool
	// Names are the device's names on the LAN, without .local. A request for another name is refused: a web site may
	// point its name to this address (DNS rebinding).
	Names func() []string
	// Report is called when the page cannot listen; nil is success.
	Report func(error)
	Log    *slog.Logger
	// Ports are WebPort and Port if it is nil; tests have others.
	Ports []int
}

// Server serves the page while it is switched on.
type Server struct {
	cfg  Config
	poke chan struct{}

	mu   sync.Mutex
	on   bool
	lent bool           // another component of this device has WebPort
	has  map[int]func() // closes the listener of a port

	making sync.Mutex // held while a page is rendered, which calls URL
	made   [2]rendered
}

// rendered is a page, and when it was rendered.
type rendered struct {
	at   time.Time
	page []byte
}

// SharedName is the name on the LAN, without .local, that one of all devices answers for; its page lists them.
const SharedName = "rivulet"

// New returns a server that is off.
func New(cfg Config) *Server {
	if cfg.Ports == nil {
		cfg.Ports = []int{WebPort, Port}
	}
	return &Server{cfg: cfg, poke: make(chan struct{}, 1), has: map[int]func(){}}
}

// Switch turns the page on or off.
func (s *Server) Switch(on bool) {
	s.mu.Lock()
	s.on = on
	s.mu.Unlock()
	changes.Poke(s.poke)
}

// Lend gives WebPort to another component of this device, which passes requests on, or takes it back.
func (s *Server) Lend(lent bool) {
	s.mu.Lock()
	s.lent = lent
	s.mu.Unlock()
	changes.Poke(s.poke)
}

// Holds reports whether the page listens on a port.
func (s *Server) Holds(port int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has[port] != nil
}

// URL is the page's address with a host, empty if it does not listen.
func (s *Server) URL(host string) string {
	for _, p := range s.cfg.Ports {
		if !s.Holds(p) {
			continue
		}
		if p == WebPort {
			return "http://" + host
		}
		return fmt.Sprintf("http://%s:%d", host, p)
	}
	return ""
}

// Run serves until ctx ends. It calls ready after the first attempt to listen.
func (s *Server) Run(ctx context.Context, ready func()) {
	defer func() { _ = s.keep(ctx, false) }()
	for {
		s.mu.Lock()
		on := s.on
		s.mu.Unlock()
		err := s.keep(ctx, on)
		s.cfg.Report(err)
		ready()
		var look <-chan time.Time
		if err != nil {
			look = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-look:
		case <-s.poke:
		}
	}
}

// keep opens and closes listeners as needed, as far as ports are free.
func (s *Server) keep(ctx context.Context, on bool) error {
	var web error
	s.mu.Lock()
	lent := s.lent
	s.mu.Unlock()
	for _, port := range s.cfg.Ports {
		has, wanted := s.Holds(port), on && !(lent && port == WebPort)
		switch {
		case !wanted && has:
			s.drop(port)
		case wanted && !has:
			if err := s.listen(ctx, port); err != nil && web == nil {
				web = taken(port, err)
			}
		}
	}
	if web == nil {
		return nil
	}
	where := "there is no page"
	for _, port := range s.cfg.Ports {
		if s.Holds(port) {
			where = fmt.Sprintf("the page is on port %d", port)
			break
		}
	}
	return fmt.Errorf("%w: %s; free the port, or set statusPage: false", web, where)
}

func taken(port int, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d/tcp is taken%s", port, netmon.Listener("tcp", port))
	}
	return fmt.Errorf("port %d/tcp: %w", port, err)
}

func (s *Server) drop(port int) {
	s.mu.Lock()
	end := s.has[port]
	s.mu.Unlock()
	end()
	s.mu.Lock()
	delete(s.has, port) // the port is free only now
	s.mu.Unlock()
}

func (s *Server) listen(ctx context.Context, port int) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	srv := httpserver.New(httpserver.StatusPage, s, s.cfg.Log)
	s.mu.Lock()
	s.has[port] = func() {
		l.Close() // Close of a server without Serve does not close it
		srv.Close()
	}
	s.mu.Unlock()
	s.cfg.Log.Info("status page", "port", port)
	// Hosts that are not admitted do not count as visitors.
	go srv.Serve(httpserver.StatusPage.Listen(connlimit.Admitting{Listener: l, Admit: s.cfg.Admit})) //nolint:errcheck // ends when it is closed
	return nil
}

// ServeHTTP answers with the page.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	switch {
	case !s.serves(r.Host):
		http.Error(w, "this device is not called that", http.StatusMisdirectedRequest)
		return
	case r.URL.Path != "/":
		http.NotFound(w, r)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page is read-only", http.StatusMethodNotAllowed)
		return
	}
	body, err := s.current(!s.called(r.Host))
	if err != nil {
		s.cfg.Log.Error("the status page cannot be made", "err", err)
		http.Error(w, "the page cannot be made; see: rivulet status", http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.Write(body) //nolint:errcheck // the visitor has gone
}

// current is the page of this device, or of all on the LAN; it is rendered again if it is old.
func (s *Server) current(shared bool) ([]byte, error) {
	s.making.Lock()
	defer s.making.Unlock()
	made, render := &s.made[0], Render
	if shared {
		made, render = &s.made[1], RenderLAN
	}
	if made.page != nil && time.Since(made.at) < pageLife {
		return made.page, nil
	}
	body, err := render(s.cfg.View())
	if err == nil {
		*made = rendered{time.Now(), body}
	}
	return body, err
}

// serves reports whether there is a page for a host.
func (s *Server) serves(host string) bool {
	return hostOf(host) == SharedName+".local" || s.called(host)
}

// hostOf is the host of a request in lower case, without port and final dot.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// called reports whether host is a name of the device, or an address.
func (s *Server) called(host string) bool {
	host = hostOf(host)
	if host == "localhost" {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	host = strings.TrimSuffix(host, ".local")
	return slices.ContainsFunc(s.cfg.Names(), func(name string) bool { return strings.EqualFold(name, host) })
}
