// Package endpoint serves the metrics to scrapers on the LAN or in pods, with the key `metrics`.
//
//	lan   TCP 7444 on all addresses; hosts on a link of a LAN are admitted
//	pods  TCP 7444 on the node's own address; pods of this cluster are admitted, no tenants
//	off   no port
//
// A client is admitted by its address, before TLS, and authenticated by a bearer token or by the key of its
// certificate, at each request. Clients without access have few connections and little time, so that they keep no
// scraper out.
//
// It reads the metrics, and the note "metrics" of the store, which it alone writes: names and hashes of tokens and
// keys. Restart: all state is in the note. Failure: if the port is taken the component is Failed and tries again each
// second; without a readable note nobody has access.
package endpoint

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/lifecycle"
	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/rpc"
)

// ServerName is the name in the server's certificate.
const ServerName = "metrics.rivulet"

// Config is the input of New. All of it is required.
type Config struct {
	Store   Store
	Key     ed25519.PrivateKey // of the cluster
	Name    api.Named          // of the cluster
	Metrics http.Handler
	// Node is the node's own address, where pods reach the endpoint.
	Node netip.Addr
	LAN  LAN
	Pods interface{ Own(netip.Addr) bool } // reports whether an address is of a pod of this cluster
	Port uint16                            // api.MetricsPort
	// Setting is the value of the key; empty is off.
	Setting string
}

// LAN has the device's addresses on its LANs, and reports whether an address is of a host on a link of a LAN.
type LAN interface {
	Addresses() []netip.Addr
	Admit(netip.Addr) bool
}

// Endpoint serves the metrics. Its routes work before Run.
type Endpoint struct {
	cfg  Config
	list *accesses

	mu      sync.Mutex
	setting string
	changed chan struct{}
}

// New reads the note.
func New(cfg Config) *Endpoint {
	return &Endpoint{cfg: cfg, list: load(cfg.Store), setting: cmp.Or(cfg.Setting, config.MetricsOff), changed: make(chan struct{}, 1)}
}

// Configure takes another value of the key.
func (e *Endpoint) Configure(setting string) {
	e.mu.Lock()
	setting = cmp.Or(setting, config.MetricsOff)
	same := e.setting == setting
	e.setting = setting
	e.mu.Unlock()
	if !same {
		changes.Poke(e.changed)
	}
}

func (e *Endpoint) now() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.setting
}

// Run serves as configured until ctx ends.
func (e *Endpoint) Run(ctx context.Context, stage *lifecycle.Stage) error {
	for ctx.Err() == nil {
		if err := e.serve(ctx, stage.Ready, stage.Log()); err != nil {
			return err
		}
	}
	return nil
}

// serve serves with the present setting until that changes.
func (e *Endpoint) serve(ctx context.Context, ready func(), log *slog.Logger) error {
	select {
	case <-e.changed: // the setting that is read now is the changed one
	default:
	}
	setting := e.now()
	at, admit := "", func(netip.Addr) bool { return false }
	switch setting {
	case config.MetricsLAN:
		at, admit = ":"+strconv.Itoa(int(e.cfg.Port)), e.cfg.LAN.Admit // which includes this device
	case config.MetricsPods:
		at, admit = netip.AddrPortFrom(e.cfg.Node, e.cfg.Port).String(), func(a netip.Addr) bool { return a == e.cfg.Node || e.cfg.Pods.Own(a) }
	}
	if at == "" {
		ready()
		e.wait(ctx)
		return nil
	}
	cert, err := serving(e.cfg.Key)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("metrics: %w; end the program that has TCP port %d, or set metrics: off", err, e.cfg.Port)
	}
	srv := httpserver.New(httpserver.Metrics, http.HandlerFunc(e.answer), log)
	srv.ConnContext = connlimit.InContext // strangers until they have authenticated
	limited := httpserver.Metrics.Listen(connlimit.Admitting{Listener: l, Admit: admit})
	done := make(chan error, 1)
	go func() {
		done <- srv.Serve(tls.NewListener(limited, &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true, NextProtos: []string{"http/1.1"},
		}))
	}()
	log.Info("metrics are served", "to", setting, "at", l.Addr())
	ready()
	ended, cancel := context.WithCancel(ctx)
	go func() { e.wait(ended); srv.Close() }()
	err = <-done
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

// wait returns when the setting has changed.
func (e *Endpoint) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-e.changed:
	}
}

// source is the address of host:port; not valid if there is none.
func source(hostport string) netip.Addr {
	from, _ := netip.ParseAddrPort(hostport)
	return from.Addr().Unmap()
}

// answer authenticates a request and answers it.
func (e *Endpoint) answer(w http.ResponseWriter, r *http.Request) {
	who, ok := e.client(r)
	switch {
	case !ok:
		w.Header().Set("WWW-Authenticate", `Bearer realm="rivulet"`)
		w.Header().Set("Connection", "close")
		http.Error(w, "no access to the metrics; make one on the device: sudo rivulet metrics grant NAME", http.StatusUnauthorized)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "metrics are read-only", http.StatusMethodNotAllowed)
	case r.URL.Path != "/metrics":
		http.NotFound(w, r)
	case !connlimit.LastingRequest(r, who.Name):
		http.Error(w, "too many connections with this access; use one for each scraper", http.StatusServiceUnavailable)
	default:
		e.list.note(who, source(r.RemoteAddr), time.Now())
		e.cfg.Metrics.ServeHTTP(w, r)
	}
}

// client returns the access of a request: by its certificate, otherwise by its token.
func (e *Endpoint) client(r *http.Request) (record, bool) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 { // TLS has shown that the client has the key
		if who, ok := e.list.find(byCertificate, r.TLS.PeerCertificates[0].RawSubjectPublicKeyInfo); ok {
			return who, true
		}
	}
	kind, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(kind, "Bearer") || token == "" {
		return record{}, false
	}
	return e.list.find(byToken, []byte(strings.TrimSpace(token)))
}

// serving is the server's certificate, always the same, and pinned by scrapers.
func serving(key ed25519.PrivateKey) (tls.Certificate, error) {
	return rpc.ServerCertificate(key, ServerName)
}

// Routes registers the metrics, and the routes of `rivulet metrics grant`.
func (e *Endpoint) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/metrics", e.cfg.Metrics)
	mux.Handle("GET /v1/metrics/access", api.JSON(func(*http.Request) (any, error) {
		all, err := e.list.views()
		return api.MetricsAccesses{Setting: e.now(), Accesses: all}, err
	}))
	mux.Handle("POST /v1/metrics/access", api.JSON(func(r *http.Request) (any, error) {
		var q api.MetricsRequest
		if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 64<<10)).Decode(&q); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		return e.grant(q)
	}))
	mux.Handle("DELETE /v1/metrics/access/{name}", api.JSON(func(r *http.Request) (any, error) {
		return struct{}{}, e.list.revoke(r.PathValue("name"))
	}))
}

// grant gives access.
func (e *Endpoint) grant(q api.MetricsRequest) (any, error) {
	cert, err := serving(e.cfg.Key)
	if err != nil {
		return nil, err
	}
	r, token, err := e.list.add(q, time.Now())
	if err != nil {
		return nil, err
	}
	out := api.NewMetricsAccess{
		MetricsAccess: api.MetricsAccess{Name: r.Name, By: r.By, Made: r.Made}, Token: token, Device: e.cfg.Name.Name(), Setting: e.now(),
		ServerName: ServerName, Authority: rpc.CertificatePEM(cert.Certificate[0]),
	}
	addrs := e.cfg.LAN.Addresses()
	if out.Setting == config.MetricsPods {
		addrs = []netip.Addr{e.cfg.Node}
	}
	for _, a := range addrs {
		if !a.IsLinkLocalUnicast() {
			out.Targets = append(out.Targets, netip.AddrPortFrom(a, e.cfg.Port).String())
		}
	}
	return out, nil
}
