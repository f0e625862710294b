package appliance

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/dns"
	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/api"
	"rivulet/appliance/burst"
	"rivulet/appliance/engine"
	"rivulet/appliance/engine/certs"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/engine/images"
	"rivulet/appliance/engine/iptables"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/usage"
	"rivulet/appliance/machine/watchdog"
	"rivulet/appliance/network"
	"rivulet/appliance/network/users"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/ui/statuspage"
	"rivulet/appliance/vcluster"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/netmon"
	"rivulet/fabric/rpc"
	"rivulet/image/bundle"
	"rivulet/offload/netpol"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
)

// System holds the subsystems of a running appliance. Its fields are set before the
// manager runs and stay; what components make later is in made.
type System struct {
	cfg   Config
	exe   string
	facts host.Facts
	store *bolt.Store
	id    identity.Identity
	self  rpc.Identity
	// nodeName is kept for life; the cluster's name for its peers, name(), may change.
	nodeName  string
	volumes   *volumes.Local
	nodeIP    netip.Addr
	begun     time.Time
	manager   *lifecycle.Manager
	lans      *netmon.Monitor // those that lan.interfaces allows
	sources   network.Sources
	health    health.Tracker
	clock     *clock.Clock
	engine    *engine.Handle
	keeper    *engine.Keeper // of the engine
	dates     *certs.Keeper
	database  *datastore.Guard
	images    *images.Containerd
	notify    *watchdog.Notifier
	answers   watchdog.Answers // of the API server
	look      chan struct{}    // makes the doctor look
	settings  *settings
	upgrade   *upgrade.Handover
	footprint *usage.Watch
	netpol    *netpol.Watcher
	burst     *burst.Manager
	vclusters *vcluster.Keeper
	users     *users.Access
	page      *statuspage.Page
	heldPods  *isolation.Held
	homeAddrs *homeaddr.Pods
	// inOrder is true once the engine's databases were looked at and are in order.
	inOrder atomic.Bool
	// nodes tells that a virtual node is ready, cordoned or neither.
	nodes changes.Signal

	made shared
}

// The names of the components, as status shows them.
const (
	cAPI       = "api"
	cConfig    = "config"
	cClock     = "clock"
	cLANs      = "lans"
	cBundle    = "bundle"
	cEngine    = "engine"
	cDates     = "certificates"
	cNode      = "node"
	cSnapshots = "snapshots"
	cPage      = "status-page"
	cPodGate   = "pod-gate"
	cImages    = "images"
	cPeers     = "peers"
	cDNS       = "dns"
	cService   = "dns-service"
	cTunnel    = "tunnel"
	cFabric    = "fabric"
	cOffload   = "offload"
	cUsers     = "kubeconfig"
	cVClusters = "vclusters"
	cWatchdog  = "watchdog"
	cDoctor    = "doctor"
)

// needed are the components without which no pod can be scheduled and find its
// neighbours.
var needed = lifecycle.Essential{cBundle, cEngine, cNode, cDNS, cService}

func (s *System) run(ctx context.Context) error {
	s.begun = time.Now()
	s.newEngine()
	s.footprint = s.newFootprint()
	s.look = make(chan struct{}, 1)
	s.netpol = netpol.NewWatcher(s.cfg.Log.With("component", cPolicies))
	s.lans = netmon.New(s.cfg.Log.With("component", cLANs))
	s.lans.Allow(s.settings.Now().Config.LAN.Interfaces)
	s.sources = network.NewSources(s.lans, s.cfg.Log.With("component", cFabric))
	s.sources.Set(s.settings.Now().Config.Peers)
	s.page, s.notify = s.newPage(), watchdog.NewNotifier(s.cfg.Log)
	s.heldPods = isolation.NewHeld()
	s.homeAddrs, s.users = homeaddr.New(clusterDNS, serviceCIDR), s.newUsers()
	s.vclusters = vcluster.New(vcluster.Config{State: s.cfg.Dirs.State, Run: s.cfg.Dirs.Run, Executable: s.exe, Address: s.nodeIP, Services: serviceCIDR, Pods: podCIDR, Log: s.cfg.Log.With("component", cVClusters)})
	var err error
	if s.burst, err = s.newBurst(); err != nil {
		return err
	}
	s.manager, err = lifecycle.New(s.cfg.Log,
		lifecycle.Component{Name: cAPI, Run: s.runAPI},
		lifecycle.Component{Name: cConfig, Run: s.runConfig},
		lifecycle.Component{Name: cClock, Run: s.runClock}, // before all that mints
		lifecycle.Component{Name: cLANs, Run: s.runLANs},
		lifecycle.Component{Name: cPage, Run: s.page.Run},
		lifecycle.Component{Name: cBundle, Run: s.runBundle},
		lifecycle.Component{Name: cWall, Run: s.runWall},
		lifecycle.Component{Name: cPodGate, Run: s.runPodGate},
		lifecycle.Component{Name: cImages, Run: s.runImages},
		lifecycle.Component{Name: cEngine, Needs: []string{cClock, cBundle, cWall, cPodGate, cImages}, Run: s.keeper.Run},
		lifecycle.Component{Name: cPolicies, Needs: []string{cEngine}, Run: s.runPolicies},
		lifecycle.Component{Name: cSnapshots, Needs: []string{cEngine}, Run: s.database.Run},
		lifecycle.Component{Name: cDates, Needs: []string{cEngine}, Run: s.dates.Run},
		lifecycle.Component{Name: cNode, Needs: []string{cEngine}, Run: s.runNode},
		lifecycle.Component{Name: cDNS, Needs: []string{cBundle}, Run: s.runDNS},
		lifecycle.Component{Name: cService, Needs: []string{cEngine}, Run: s.runDNSService},
		lifecycle.Component{Name: cStorage, Needs: []string{cEngine}, Run: s.runStorage},
		lifecycle.Component{Name: cMetrics, Needs: []string{cEngine}, Run: s.runMetrics},
		lifecycle.Component{Name: cBalancer, Needs: []string{cEngine, cLANs}, Run: s.runBalancer},
		lifecycle.Component{Name: cTunnel, Needs: []string{cBundle}, Run: s.runTunnel},
		lifecycle.Component{Name: cFabric, Needs: []string{cTunnel, cLANs}, Run: s.runFabric},
		lifecycle.Component{Name: cPeers, Needs: []string{cEngine, cFabric}, Run: s.runPeers},
		lifecycle.Component{Name: cOffload, Needs: []string{cEngine, cFabric}, Run: s.runOffload},
		lifecycle.Component{Name: cUsers, Needs: []string{cEngine, cFabric}, Run: s.runUsers},
		lifecycle.Component{Name: cBurst, Needs: []string{cOffload}, Run: s.runBurst},
		lifecycle.Component{Name: cVClusters, Needs: []string{cClock, cWall}, Run: s.runVClusters},
		lifecycle.Component{Name: cWatchdog, Needs: []string{cAPI}, Run: s.runWatchdog},
		lifecycle.Component{Name: cDoctor, Run: s.runDoctor},
	)
	if err != nil {
		return err
	}
	go s.notify.Tell(ctx, s.manager, cAPI, needed, func(took time.Duration) {
		s.cfg.Log.Info("ready: pods can be scheduled", "name", s.name(), "after", took.Round(100*time.Millisecond), "next", "rivulet status")
	})
	go s.footprint.Run(ctx)
	go s.showLamp(ctx)
	return s.manager.Run(ctx)
}

func (s *System) runAPI(ctx context.Context, stage *lifecycle.Stage) error {
	routes := s.apiRoutes()
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	readers.Go(func() {
		if err := api.ServeReaders(ctx, s.cfg.Dirs.Run, routes); err != nil {
			s.cfg.Log.Warn("members of the group "+api.ReaderGroup+" cannot read; root can", "component", cAPI, "err", err)
		}
	})
	return api.Serve(ctx, s.cfg.Dirs.Run, routes, stage.Ready)
}

// apiRoutes is what the command line may ask of the supervisor.
func (s *System) apiRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/alive", api.JSON(s.alive))
	mux.Handle("GET /v1/status", api.JSON(func(*http.Request) (any, error) { return s.Status(), nil }))
	s.savingRoutes(mux)
	s.healthRoutes(mux)
	s.peerCheck().Routes(mux)
	s.configRoutes(mux)
	s.upgrade.Routes(mux)
	s.volumeRoutes(mux)
	network.Decisions(mux, func() *fabric.Fabric { return s.made.get().fabric })
	s.vclusters.Routes(mux)
	network.Burst(mux, s.burst)
	s.users.Routes(mux)
	return mux
}

func (s *System) runBundle(ctx context.Context, stage *lifecycle.Stage) error {
	dir, err := bundle.Unpack(filepath.Join(s.cfg.Dirs.State, "bundle"), s.cfg.Log.With("component", cBundle))
	if err != nil {
		return err
	}
	s.made.set(func(p *parts) { p.bundle = dir })
	stage.Ready()
	return dir.Keep(ctx, s.cfg.Log.With("component", cBundle))
}

// newEngine makes the engine's keepers, and the clock, whose jumps one of them follows.
func (s *System) newEngine() {
	state, log := s.cfg.Dirs.State, s.cfg.Log.With("component", cEngine)
	s.engine = engine.NewHandle(state)
	s.database = &datastore.Guard{State: state, Temp: s.cfg.Dirs.Run, Report: s.reportSetAside, Health: &s.health, Log: log}
	s.images = &images.Containerd{
		State: state, Run: s.cfg.Dirs.Run, Executable: s.exe, Report: s.reportSetAside, Health: &s.health, Log: log,
		EndPods: func(ctx context.Context) error { return cleanup.EndPods(ctx, traces(s.cfg.Dirs, s.cfg.EngineName)) },
	}
	s.dates = certs.NewKeeper(s.engine, datastore.Path(state), func() bool { return s.clock.Status().Plausible }, &s.health, log)
	s.clock = s.newClock()
	s.keeper = engine.NewKeeper(s.engine, engine.KeeperConfig{
		Settings: s.engineSettings, Engine: s.engineConfig, Ended: s.database.Ended, NewVersion: s.refreshPeers, Health: &s.health, Log: log,
	})
}

// engineSettings are those that an engine takes only when it starts.
func (s *System) engineSettings() engine.Settings {
	reserve := s.settings.Now().Config.Reserve
	text, own := s.registriesInForce()
	return engine.Settings{ReserveCPU: reserve.CPU, ReserveMemory: reserve.Memory, Registries: text, Own: own}
}

// engineConfig is for the next engine.
func (s *System) engineConfig() (engine.Config, error) {
	if err := host.EnsureNodeAddress(s.nodeIP, serviceCIDR); err != nil {
		return engine.Config{}, err
	}
	helpers := s.made.get().bundle
	return engine.Config{
		Executable: s.exe, Argv0: s.cfg.EngineName,
		StateDir: s.cfg.Dirs.State, RunDir: s.cfg.Dirs.Run,
		BundleBin: helpers.Bin(), PauseImage: helpers.Image("pause"),
		Iptables: func(ctx context.Context) (iptables.Choice, error) { return iptables.Choose(ctx, helpers.Netfilter()) },
		NodeName: s.nodeName, NodeIP: s.nodeIP,
		PodCIDR: podCIDR, ServiceCIDR: serviceCIDR, ClusterDNS: clusterDNS,
		Facts: s.facts, Before: s.beforeEngine,
		Answered: s.answers.Now, Log: s.cfg.Log.With("component", cEngine),
	}, nil
}

func (s *System) beforeEngine(ctx context.Context, e *engine.Engine) error {
	err := errors.Join(s.database.Prepare(ctx, e), s.images.Prepare(ctx))
	s.inOrder.Store(err == nil)
	if err != nil {
		return err
	}
	return s.dates.Prepare(ctx)
}

// refreshPeers tells peers of this cluster anew, whose version of Kubernetes is another.
func (s *System) refreshPeers() {
	if fab := s.made.get().fabric; fab != nil {
		fab.Refresh()
	}
}

func (s *System) runNode(ctx context.Context, stage *lifecycle.Stage) error {
	stage.Waiting("for the cluster's controllers")
	if err := engine.WaitAccounts(ctx, s.engine.Client()); err != nil {
		return err
	}
	stage.Waiting("for the kubelet to report")
	return engine.WatchNode(ctx, s.engine.Client(), s.nodeName, func(node *corev1.Node, ready bool, message string) {
		if ready {
			stage.Ready()
			s.images.Serves(ctx)
			s.images.Note(ctx, node)
			return
		}
		stage.Waiting("node is not ready: %s", message)
	})
}

func (s *System) runVClusters(ctx context.Context, stage *lifecycle.Stage) error {
	if err := host.EnsureNodeAddress(s.nodeIP, serviceCIDR); err != nil {
		return err
	}
	return s.vclusters.Run(ctx, stage.Ready)
}

func (s *System) dnsAddr() netip.AddrPort { return netip.AddrPortFrom(s.nodeIP, dnsPort) }

func (s *System) runDNS(ctx context.Context, stage *lifecycle.Stage) error {
	if err := host.EnsureNodeAddress(s.nodeIP, serviceCIDR); err != nil {
		return err
	}
	server := dns.New(dns.Config{
		Addr: s.dnsAddr(), Kubeconfig: s.engine.Kubeconfig(),
		ClusterDomain: clusterDomain, ServiceIP: clusterDNS, ServiceCIDR: serviceCIDR, PodCIDR: podCIDR, Results: cniResults, Memory: filepath.Join(s.cfg.Dirs.Run, "dns.json"),
		View: s.viewOf, Log: s.cfg.Log.With("component", cDNS),
	})
	stage.Waiting("for the API server")
	go whenTrue(ctx, server.Ready, stage.Ready)
	return server.Run(ctx)
}

// whenTrue calls f once cond holds. Cond is cheap and has no event to wait for.
func whenTrue(ctx context.Context, cond func() bool, f func()) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	f()
}

func (s *System) runDNSService(ctx context.Context, stage *lifecycle.Stage) error {
	if err := dns.EnsureService(ctx, s.engine.Client(), clusterDNS, s.dnsAddr()); err != nil {
		return err
	}
	stage.Ready()
	<-ctx.Done()
	return nil
}
