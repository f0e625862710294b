// Package dns is the cluster's DNS server: CoreDNS's kubernetes, forward and
// cache plugins as libraries, inside the supervisor, with one plugin of our own,
// twin, which lets pods of other clusters that run here find their Services
// under the names they have at home.
//
//	query ─▶ twin ─▶ kubernetes ─▶ upstream (cache ─▶ forward)
//
// It reads Services, EndpointSlices, Namespaces and the addresses of Pods from
// the API server, those of this device's pods from what the container network has made,
// and upstream servers from resolv.conf. It alone writes Memory,
// what it last knew, in a folder that a boot empties;
// RunService, a component of its own, alone writes the Service
// kube-system/kube-dns and its EndpointSlice. A restart binds the
// port at once and answers from what was last known, until the API server is
// there. After a boot nothing is known: until the API server answers, and when
// there is no upstream, it answers SERVFAIL at once instead of letting clients
// wait. While the API server is away it goes on answering what it last knew.
//
// CoreDNS's own server and Corefile are not used: they are global to a process
// and end it on some errors. Several Servers may run in one process.
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
	// Addr is where it listens, UDP and TCP.
	Addr netip.AddrPort
	// Kubeconfig is the path of credentials that may list and watch Services,
	// EndpointSlices, Namespaces and Pods. The file need not exist yet.
	Kubeconfig string
	// ClusterDomain, cluster.local if empty.
	ClusterDomain string
	// ServiceIP is the cluster IP that leads to Addr. It is never used as upstream.
	ServiceIP netip.Addr
	// ServiceCIDR is that of Services: a tenant that was made for home's addresses is told of
	// none in it but those that its home has.
	ServiceCIDR netip.Prefix
	// View is how the home of such a tenant, by the ID of its cluster, sees pods.
	View func(id string) homeaddr.View
	// Memory is a file, in memory, with what was last known: see memory.go. Empty is none.
	Memory string
	// PodCIDR is that of pods, Results the folder of what the container network has made for
	// those of this device; without them tenants are known by the API server alone.
	PodCIDR netip.Prefix
	Results string
	// Networks are this device's own: what has an address there is no public name.
	Networks func() []netip.Prefix
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
	past    *index // as remembered; nil if nothing is
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
	if cfg.ResolvConf == nil {
		cfg.ResolvConf = host.ResolvFiles
	}
	s := &Server{cfg: cfg, log: cfg.Log, index: newIndex()}
	domain := miekg.CanonicalName(cfg.ClusterDomain)
	up := newUpstream(cfg.ResolvConf, func(a netip.Addr) bool { return a == cfg.Addr.Addr() || a == cfg.ServiceIP }, s.log)
	s.cluster = &cluster{domain: domain, next: up, lookup: s.lookup}
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

// Run serves until ctx ends; ready is called once names of the cluster are answered. It
// returns an error only if it cannot listen, or stops listening.
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

// watch follows the API server, from when it is there to the end of ctx.
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
