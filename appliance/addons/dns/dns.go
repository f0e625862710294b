// Package dns is the cluster's DNS server: CoreDNS's kubernetes, forward and cache plugins as libraries in the
// supervisor, with one more plugin, twin, through which tenants find their Services under the names that they have at
// home.
//
//	query ─▶ twin ─▶ kubernetes ─▶ upstream (cache ─▶ forward)
//
// It reads Services, EndpointSlices, Namespaces and pod addresses from the API server, those of this device's pods from
// the container network's results, and upstream servers from resolv.conf. It alone writes Memory, the last known data,
// in a folder that is empty after a boot; RunService, a separate component, alone writes the Service
// kube-system/kube-dns and its EndpointSlice. Restart: it binds the port at once and answers from Memory until the API
// server answers. Failure: without known data or without an upstream it answers SERVFAIL at once, so that clients do
// not wait; while the API server is away it answers from the last known data.
//
// CoreDNS's own server and Corefile are not used: they are global to a process and end it on some errors. Several
// Servers may run in one process.
package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	miekg "github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/util/wait"

	"rivulet/appliance/machine/host"
	"rivulet/offload/nodeagent/homeaddr"
)

// Config of a Server.
type Config struct {
	// Addr is the address to listen on, UDP and TCP.
	Addr netip.AddrPort
	// Kubeconfig is the path of credentials that may list and watch Services, EndpointSlices, Namespaces and Pods. The
	// file need not exist yet.
	Kubeconfig string
	// ClusterDomain, cluster.local if empty.
	ClusterDomain string
	// ServiceIP is the cluster IP for Addr. It is never used as upstream.
	ServiceIP netip.Addr
	// ServiceCIDR is that of Services: a tenant made for home's addresses receives only addresses in it that are of its
	// home.
	ServiceCIDR netip.Prefix
	// View returns how the home of such a tenant, by the ID of its cluster, sees pods.
	View func(id string) homeaddr.View
	// Memory is a file, in memory, with the last known data: see memory.go. Empty is none.
	Memory string
	// PodCIDR is that of pods, Results the folder of the container network's results for pods of this device; without
	// them only the API server identifies tenants.
	PodCIDR netip.Prefix
	Results string
	// Networks are this device's own: a name with an address there is not public.
	Networks func() []netip.Prefix
	// LANs are the links of this device: when they change, cached answers are dropped.
	LANs func() []netip.Prefix
	// ResolvConf are files with upstream servers, best first; nil is host.ResolvFiles.
	ResolvConf []string
	Log        *slog.Logger
}

// Server answers the pods of a cluster.
type Server struct {
	cfg     Config
	log     *slog.Logger
	chain   plugin.Handler
	cluster *cluster
	index   *index
	local   *local
	past    *index // from Memory; nil if there is none
	bound   atomic.Bool
}

// New returns a Server that does nothing yet.
func New(cfg Config) *Server {
	if cfg.ClusterDomain == "" {
		cfg.ClusterDomain = "cluster.local"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Networks == nil {
		cfg.Networks = func() []netip.Prefix { return nil }
	}
	if cfg.LANs == nil {
		cfg.LANs = func() []netip.Prefix { return nil }
	}
	if cfg.ResolvConf == nil {
		cfg.ResolvConf = host.ResolvFiles
	}
	s := &Server{cfg: cfg, log: cfg.Log, index: newIndex()}
	domain := miekg.CanonicalName(cfg.ClusterDomain)
	up := newUpstream(cfg.ResolvConf, func(a netip.Addr) bool { return a == cfg.Addr.Addr() || a == cfg.ServiceIP }, cfg.LANs, s.log)
	s.cluster = &cluster{domain: domain, next: up, lookup: s.lookup, limit: defineLimit}
	s.local = &local{results: cfg.Results}
	s.recall()
	s.index.local = s.local
	if s.past != nil {
		s.past.local = s.local
	}
	s.chain = &twin{domain: domain, pods: cfg.PodCIDR, services: cfg.ServiceCIDR, dns: cfg.ServiceIP, sees: cfg.View, index: s.index, past: s.past, networks: cfg.Networks, next: s.cluster}
	return s
}

// ready reports whether names of the cluster are answered.
func (s *Server) ready() bool {
	return s.bound.Load() && s.cluster.ready() && s.index.synced()
}

// Run serves until ctx ends; it calls ready once names of the cluster are answered. It returns an error only if it
// cannot listen, or stops listening.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listeners, err := s.listen(ctx)
	if err != nil {
		return err
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(ctx)
	}()
	go func() { // there is no event for it
		if wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) { return s.ready(), nil }) == nil {
			ready()
		}
	}()
	go s.remember(ctx)
	go s.local.run(ctx)
	err = s.serve(ctx, listeners)
	cancel()
	<-watched
	return err
}

// watch follows the API server from its first answer until ctx ends.
func (s *Server) watch(ctx context.Context) {
	config, client, err := s.waitForAPI(ctx)
	if err != nil {
		return // ctx ended
	}
	s.log.Info("the API server answers; reading services and pods", "kubeconfig", s.cfg.Kubeconfig)
	stop, err := s.cluster.start(ctx, config)
	if err != nil {
		s.log.Error("names of the cluster cannot be answered; restart rivulet", "err", err)
		return
	}
	s.index.run(ctx, client)
	if err := stop(); err != nil {
		s.log.Debug("stopping the watch of services", "err", err)
	}
}

func (s *Server) kubeconfigError() error {
	if _, err := os.Stat(s.cfg.Kubeconfig); err != nil {
		return fmt.Errorf("dns: no credentials for the API server yet: %w", err)
	}
	return nil
}
