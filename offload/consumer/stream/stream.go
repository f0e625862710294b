// Package stream serves the kubelet API of a virtual node, so that logs, exec, attach and port-forward work for away
// pods, and nodes/NODE/proxy has its pods and their usage. Each request is forwarded to the same sub-resource of the
// away pod, upgrades included; the streams inside are between kubectl and the provider's kubelet. It reads home's
// certificate authorities and writes nothing. Home's API server has access, and those to whom home's RBAC grants
// nodes/metrics and the like (access). Restart: the port changes, and the Node has the new one. Failure: the answer has
// the reason, such as a pod that has not started or a lost link.
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/fabric/httpserver"
	"rivulet/offload/consumer/pod"
)

// Config are the dependencies of a Server. All fields but Port are required.
type Config struct {
	IP netip.Addr // to listen on
	// Port is used if it is free; 0 is any.
	Port      uint16
	Authority Authority
	// Home is a client of home's API server, which authenticates and authorizes requesters.
	Home kubernetes.Interface
	// Target is a configuration for the target's API.
	Target *rest.Config
	Node   string // the virtual node's name
	Pods   Pods
	Log    *slog.Logger
}

// Pods are those of the target's virtual nodes: a pod.Controller.
type Pods interface {
	// Away returns where a pod of home runs now; an error with a status is the answer.
	Away(namespace, name string) (twin, pod string, err error)
	// On are those bound to a node, in a slice of their own, and Usage is their resource usage.
	On(node string) []*corev1.Pod
	Usage(ctx context.Context, node string) ([]pod.Usage, error)
}

// Server is the kubelet API of one virtual node.
type Server struct {
	cfg      Config
	listener net.Listener
	server   *url.URL
	plain    http.RoundTripper
	upgrade  http.RoundTripper // HTTP/1.1: HTTP/2 has no upgrades
	counters counters
	access   *access
}

// settling is how long a request waits for the list of the target's pods (pod.ErrNotKnown), after a start or a lost
// link.
const settling = 5 * time.Second

// Listen opens the port; Run serves it.
func Listen(cfg Config) (*Server, error) {
	server, _, err := rest.DefaultServerUrlFor(cfg.Target)
	if err != nil {
		return nil, fmt.Errorf("offload: address of the target's API: %w", err)
	}
	plain, err := rest.TransportFor(cfg.Target)
	if err != nil {
		return nil, fmt.Errorf("offload: transport to the target's API: %w", err)
	}
	old := rest.CopyConfig(cfg.Target)
	old.NextProtos = []string{"http/1.1"}
	upgrade, err := rest.TransportFor(old)
	if err != nil {
		return nil, fmt.Errorf("offload: transport to the target's API: %w", err)
	}
	// The base path ("/k8s") is part of Host and stays the prefix.
	if base, err := url.Parse(cfg.Target.Host); err == nil {
		server.Path = base.Path
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(cfg.IP, cfg.Port).String())
	if err != nil && cfg.Port != 0 {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(cfg.IP, 0).String())
	}
	if err != nil {
		return nil, fmt.Errorf("offload: kubelet port of a virtual node on %s: %w", cfg.IP, err)
	}
	access, err := newAccess(cfg.Home, cfg.Node)
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	return &Server{cfg: cfg, listener: listener, server: server, plain: plain, upgrade: upgrade, access: access}, nil
}

func (s *Server) Port() uint16 { return uint16(s.listener.Addr().(*net.TCPAddr).Port) }

// Run serves until ctx ends, and then closes open connections.
func (s *Server) Run(ctx context.Context) error {
	certs := &certificates{Authority: s.cfg.Authority, ip: s.cfg.IP}
	srv := httpserver.New(httpserver.Kubelet, s.access.guard(s.routes()), s.cfg.Log)
	srv.TLSConfig = certs.config()
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	defer srv.Close()
	if err := srv.ServeTLS(httpserver.Kubelet.Listen(s.listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("offload: kubelet API of a virtual node: %w", err)
	}
	return ctx.Err()
}

// Close closes the port of a Server that is never run.
func (s *Server) Close() { _ = s.listener.Close() }

// routes are those of a kubelet.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for kubelet, to := range map[string]mapping{
		"/containerLogs/{namespace}/{pod}/{container}": logs,
		"/exec/{namespace}/{pod}/{container}":          exec,
		"/exec/{namespace}/{pod}/{uid}/{container}":    exec,
		"/attach/{namespace}/{pod}/{container}":        attach,
		"/attach/{namespace}/{pod}/{uid}/{container}":  attach,
		"/portForward/{namespace}/{pod}":               portForward,
		"/portForward/{namespace}/{pod}/{uid}":         portForward,
	} {
		mux.HandleFunc(kubelet, func(w http.ResponseWriter, r *http.Request) { s.pass(w, r, to) })
	}
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.HandleFunc("GET /metrics/resource", s.resource)
	mux.HandleFunc("GET /metrics/cadvisor", s.cadvisor)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /metrics/probes", s.probes)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /runningpods/", s.runningPods)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("/", s.unknown)
	return mux
}

func (s *Server) pass(w http.ResponseWriter, r *http.Request, to mapping) {
	namespace, name := r.PathValue("namespace"), r.PathValue("pod")
	twin, away, err := s.cfg.Pods.Away(namespace, name)
	for began := time.Now(); errors.Is(err, pod.ErrNotKnown) && time.Since(began) < settling && r.Context().Err() == nil; {
		select {
		case <-r.Context().Done():
		case <-time.After(50 * time.Millisecond):
			twin, away, err = s.cfg.Pods.Away(namespace, name)
		}
	}
	upgrade := httpstream.IsUpgradeRequest(r)
	if err != nil {
		status := apierrors.APIStatus(apierrors.NewServiceUnavailable(err.Error()))
		errors.As(err, &status)
		refuse(w, upgrade, status.Status())
		return
	}
	path := to.path(s.server.Path, twin, away)
	query := to.query(r.URL.Query(), r.PathValue("container")).Encode()
	transport := s.plain
	if upgrade {
		transport = s.upgrade
	}
	proxy := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // followed logs are not buffered
		ErrorLog:      slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: s.server.Scheme, Host: s.server.Host, Path: path, RawQuery: query}
			p.Out.Host = s.server.Host
			p.Out.Header.Del("Authorization")
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode >= http.StatusBadRequest {
				return asKubelet(resp, upgrade, strings.NewReplacer(away, name, twin, namespace))
			}
			if to.command {
				guard(resp, s.cfg.Node)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				refuse(w, upgrade, metav1.Status{Code: http.StatusBadGateway, Reason: metav1.StatusReasonServiceUnavailable,
					Message: fmt.Sprintf("offload: the target's API does not answer for %s/%s: %v; see rivulet peers, or rivulet burst list", namespace, name, err)})
			}
		},
	}
	proxy.ServeHTTP(w, r)
}
