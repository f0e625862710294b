// Package resourcemetrics is the cluster's resource metrics API, metrics.k8s.io, in the supervisor: for `kubectl top`
// and horizontal pod autoscalers (docs/design/metrics.md).
//
// It reads summaries of the kubelets on request, cached for 10 s, and metadata from the API server; without requests
// nothing is measured. It alone writes the APIService v1beta1.metrics.k8s.io, the Service rivulet-metrics and the
// ClusterRole rivulet:metrics-reader, once per start. Restart: a new certificate is registered. Failure: a node whose
// kubelet does not answer is left out of lists; an APIService of another program stays, which status shows.
package resourcemetrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/health"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/netmon"
)

// Config of a Server. All fields must be set.
type Config struct {
	// API has all rights at the API server.
	API *rest.Config
	// Addr is the address to listen on: the node's own.
	Addr netip.AddrPort
	// ClientCA is the file of the authority for the certificate by which the API server proves that it has authorized
	// the user.
	ClientCA string
	Health   *health.Tracker
	Log      *slog.Logger
}

// Server serves the API server.
type Server struct {
	cfg    Config
	client kubernetes.Interface
	source *source
}

// New returns a Server that does nothing yet.
func New(cfg Config) (*Server, error) {
	client, listed, err := clients(cfg.API)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, client: client, source: newSource(listed, summaries(client), cfg.Log)}, nil
}

// Run serves until ctx ends; it calls ready when the API server reaches it.
func (s *Server) Run(ctx context.Context, ready func()) error {
	authority, err := newAuthority(serverName)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Addr.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("metrics: port %d/tcp is taken%s (%w); stop that program, kubectl top does not work until then",
			s.cfg.Addr.Port(), netmon.Listener("tcp", int(s.cfg.Addr.Port())), syscall.EADDRINUSE)
	}
	if err != nil {
		return fmt.Errorf("metrics: %w; kubectl top does not work until it can be had, it is tried again", err)
	}
	server := httpserver.New(httpserver.ResourceMetrics, newHandler(s.source), s.cfg.Log)
	server.TLSConfig = authority.config(s.cfg.ClientCA)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(httpserver.ResourceMetrics.Listen(listener), "", "") }()

	if err := s.register(ctx, authority.bundle); err != nil {
		server.Close()
		<-served
		return err
	}
	if s.waitAvailable(ctx) {
		ready()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
