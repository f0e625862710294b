package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/internal/desired"
)

// ServeControl serves home on the listener until ctx ends.
//
//	PUT /v1/config    the whole desired state; 204 when in force, 422 if invalid
//	GET /v1/status    gatewayproto.Status
//	GET /v1/ready     204, or 503 without a configuration
func (g *Gateway) ServeControl(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/config", desired.Config("gateway", g.Apply))
	mux.HandleFunc("GET /v1/status", desired.Status(func() (gatewayproto.Status, error) { return g.Status(), nil }))
	mux.HandleFunc("GET /v1/ready", g.ready)
	return g.answer(ctx, httpserver.GatewayControl, l, mux)
}

func (g *Gateway) answer(ctx context.Context, b httpserver.Bounds, l net.Listener, h http.Handler) error {
	srv := httpserver.New(b, h, g.log)
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(b.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("gateway: %w", err)
	}
	return ctx.Err()
}

func (g *Gateway) ready(w http.ResponseWriter, _ *http.Request) {
	if !g.state.Load().set {
		http.Error(w, "gateway: no configuration yet", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// ServeReady answers the kubelet's readiness probe, on all addresses, and takes streams that come by the API server's
// proxy of pods.
func (g *Gateway) ServeReady(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ready", g.ready)
	mux.HandleFunc("GET "+gatewayproto.StreamPath, func(w http.ResponseWriter, r *http.Request) { g.upgrade(ctx, w, r) })
	return g.answer(ctx, httpserver.GatewayReady, l, mux)
}

// upgrade makes the connection of a request a stream of the tunnel.
func (g *Gateway) upgrade(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	s := g.state.Load()
	if r.Header.Get("Upgrade") != gatewayproto.StreamUpgrade || !s.set {
		http.Error(w, "gateway: no stream is asked for, or there is no configuration yet", http.StatusBadRequest)
		return
	}
	c, begun, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "gateway: "+err.Error(), http.StatusInternalServerError)
		return
	}
	if begun.Reader.Buffered() > 0 { // home waits for the answer
		c.Close()
		return
	}
	const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + gatewayproto.StreamUpgrade + "\r\n\r\n"
	if _, err := io.WriteString(c, switching); err != nil {
		c.Close()
		return
	}
	g.begin(ctx, c, s)
}

// begin makes a connection a stream of the tunnel, if home is at its other end. Until that is proved it is a stranger's
// to the listener: any pod of the campus may open one.
func (g *Gateway) begin(ctx context.Context, c net.Conn, s *state) {
	if err := g.tunnel.Begin(ctx, c, s.home); err != nil {
		g.strangers.Info("no stream", "err", err)
		return
	}
	connlimit.Lasting(c, "home") // else it is one of too many, and has ended
}

// TakeStreams makes each connection to the listener a stream of the tunnel.
func (g *Gateway) TakeStreams(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	l = httpserver.GatewayReady.Listen(l)
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return ctx.Err()
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s := g.state.Load()
		if !s.set {
			c.Close()
			continue
		}
		go g.begin(ctx, c, s)
	}
}

// fileEvery is the interval of checks of the file. The kubelet updates a mounted Secret about a minute after home has
// written it, by replacing a symlink: events would gain little.
const fileEvery = 5 * time.Second

// FollowFile applies the configuration in the file, and again when the file changes, until ctx ends. A file older than
// the configuration in force is ignored.
func (g *Gateway) FollowFile(ctx context.Context, path string) error {
	var last string
	for {
		raw, err := os.ReadFile(path)
		if err == nil && string(raw) != last {
			last = string(raw)
			var cfg gatewayproto.Gateway
			if err := json.Unmarshal(raw, &cfg); err != nil {
				g.log.Warn("the configuration is unreadable", "file", path, "err", err)
			} else if now := g.state.Load(); now.set && now.cfg.Generation >= cfg.Generation {
				g.log.Debug("the file is older than what home has told", "generation", cfg.Generation)
			} else if err := g.Apply(cfg); err != nil {
				g.log.Warn("the configuration cannot be", "file", path, "err", err)
			}
		}
		if !changes.Wait(ctx, fileEvery) {
			return ctx.Err()
		}
	}
}

// NameServers reads the campus's DNS servers from a resolv.conf.
func NameServers(path string) []string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "nameserver" {
			out = append(out, net.JoinHostPort(f[1], "53"))
		}
	}
	return out
}
