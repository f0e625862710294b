package appliance

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/dns"
	"rivulet/appliance/addons/netpol"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
	"rivulet/appliance/engine/certs"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/engine/images"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/quarantine"
	"rivulet/appliance/version"
	"rivulet/image/bundle"
)

func (s *System) runBundle(ctx context.Context, stage *lifecycle.Stage) error {
	dir, err := bundle.Unpack(filepath.Join(s.cfg.Dirs.State, "bundle"), stage.Log())
	if err != nil {
		return err
	}
	s.bundle.Store(&dir)
	stage.Ready()
	return dir.Keep(ctx, stage.Log())
}

// newEngine creates the engine's supervisors, and the clock, whose jumps one of them follows: peers may read the clock
// at any time.
func (s *System) newEngine() {
	state, log := s.cfg.Dirs.State, s.log("engine")
	s.engine = engine.NewHandle(state)
	s.database = &datastore.Guard{State: state, Temp: s.cfg.Dirs.Run, Health: &s.health, Log: log}
	s.images = &images.Containerd{
		State: state, Run: s.cfg.Dirs.Run, Executable: s.exe, Health: &s.health, Log: log,
		EndPods: func(ctx context.Context) error {
			return cleanup.EndPods(ctx, cleanup.Config{State: state, Run: s.cfg.Dirs.Run, EngineName: s.cfg.EngineName})
		},
	}
	s.certs = certs.NewRenewer(s.engine, s.database, func() bool { return s.clock.Status().Plausible && s.nodes.Reaches() }, &s.health, log)
	s.clock = clock.New(clock.Config{
		System: clock.Machine(s.log("clock")), Built: version.Built(), Dates: clock.Dates{Hosts: clock.Registries}, Store: s.store, Health: &s.health,
		Jumped: func(j clock.Jump) { s.certs.Jumped(j.By) }, Log: s.log("clock"),
	})
	s.supervisor = engine.NewSupervisor(s.engine, engineOwner{s}, &s.health, log)
}

// engineOwner is the device as its engine sees it.
type engineOwner struct{ s *System }

func (o engineOwner) Settings() engine.Settings {
	set := o.s.config()
	text, own := set.Registries.InForce()
	return engine.Settings{ReserveCPU: set.Reserve.CPU, ReserveMemory: set.Reserve.Memory, Registries: text, Own: own, Datastore: set.Datastore.Reveal()}
}

func (o engineOwner) Config() (engine.Config, error) {
	s := o.s
	if _, err := host.EnsureNodeAddress(s.nodeIP, fixed.ServiceCIDR); err != nil {
		return engine.Config{}, err
	}
	helpers := s.bundle.Load()
	return engine.Config{
		Executable: s.exe, Argv0: s.cfg.EngineName,
		StateDir: s.cfg.Dirs.State, RunDir: s.cfg.Dirs.Run,
		BundleBin: helpers.Bin(), Images: []string{helpers.Image("pause"), helpers.Image("hello")},
		Netfilter: helpers.Netfilter(), NodeName: s.nodeName, NodeIP: s.nodeIP, Join: s.worker.Engine(), Elect: s.worker.Leased(),
		PodCIDR: fixed.PodCIDR, ServiceCIDR: fixed.ServiceCIDR, ClusterDNS: fixed.ClusterDNS,
		Facts: s.facts, Log: s.log("engine"),
	}, nil
}

func (o engineOwner) Prepare(ctx context.Context, e *engine.Engine) error {
	s := o.s
	s.health.SetAside(quarantine.All(s.cfg.Dirs.State)) // the engine may have begun a torn cluster anew
	if s.worker.Joined != nil {                         // it has no database and no authorities
		return s.images.Prepare(ctx)
	}
	err := errors.Join(s.database.Prepare(ctx, e), s.images.Prepare(ctx))
	s.inOrder.Store(err == nil)
	if err != nil {
		return err
	}
	return s.certs.Prepare(ctx)
}

func (o engineOwner) Answered()       { o.s.answers.Now() }
func (o engineOwner) Ended(err error) { o.s.database.Ended(err) }

// NewVersion sends peers this cluster's message again, which has the version of Kubernetes.
func (o engineOwner) NewVersion() {
	if fab := o.s.fabric.Load(); fab != nil {
		fab.Refresh()
	}
}

func (s *System) runNode(ctx context.Context, stage *lifecycle.Stage) error {
	return s.engine.RunNode(ctx, stage, s.nodeName, func(node *corev1.Node) {
		s.images.Serves(ctx)
		s.images.Note(ctx, node)
	})
}

// runPolicies enforces NetworkPolicies. Offload, which passes them to targets, reads the same watcher.
func (s *System) runPolicies(ctx context.Context, stage *lifecycle.Stage) error {
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return s.netpol.Run(ctx, s.engine.Client()) })
	both.Go(func() error {
		return netpol.Run(ctx, netpol.Config{
			World: s.netpol, Results: fixed.CNIResults, Guard: s.rules, Log: stage.Log(),
			Report: func(err error) { s.health.Report(health.NetworkPolicy, err) },
		})
	})
	stage.Ready() // without policies there is nothing to wait for
	return both.Wait()
}

func (s *System) dnsAddr() netip.AddrPort { return netip.AddrPortFrom(s.nodeIP, fixed.DNSPort) }

func (s *System) runDNS(ctx context.Context, stage *lifecycle.Stage) error {
	if _, err := host.EnsureNodeAddress(s.nodeIP, fixed.ServiceCIDR); err != nil {
		return err
	}
	stage.Waiting("for the API server")
	return dns.New(dns.Config{
		Addr: s.dnsAddr(), Kubeconfig: s.engine.Kubeconfig(),
		ClusterDomain: fixed.ClusterDomain, ServiceIP: fixed.ClusterDNS, ServiceCIDR: fixed.ServiceCIDR, PodCIDR: fixed.PodCIDR, Results: fixed.CNIResults, Memory: filepath.Join(s.cfg.Dirs.Run, "dns.json"),
		View: s.nodes.ViewOn(s.viewOf), Networks: func() []netip.Prefix { return host.Routes(fixed.Tunnel) }, LANs: func() []netip.Prefix { return s.lans.LANs().Prefixes() }, Log: stage.Log(),
	}).Run(ctx, stage.Ready)
}

func (s *System) runDNSService(ctx context.Context, stage *lifecycle.Stage) error {
	return dns.RunService(ctx, s.engine.Client(), fixed.ClusterDNS, s.dnsAddr(), s.nodeName, stage.Ready)
}
