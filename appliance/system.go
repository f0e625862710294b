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
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/appliance/burst"
	"rivulet/appliance/clock"
	"rivulet/appliance/dns"
	"rivulet/appliance/engine"
	"rivulet/appliance/footprint"
	"rivulet/appliance/health"
	"rivulet/appliance/host"
	"rivulet/appliance/identity"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/store"
	"rivulet/appliance/version"
	"rivulet/appliance/watchdog"
	"rivulet/fabric"
	"rivulet/fabric/netmon"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/image/bundle"
	"rivulet/offload"
	"rivulet/offload/netpol"
)

// System holds the subsystems of a running appliance. Fields below mu are set
// by the component that makes them, before it is Ready, and read by those that
// need it.
type System struct {
	cfg   Config
	exe   string
	facts host.Facts
	store *store.Store
	id    identity.Identity
	self  rpc.Identity
	// nodeName is kept for life; the cluster's name for its peers, name(), may change.
	nodeName  string
	nodeIP    netip.Addr
	begun     time.Time
	manager   *lifecycle.Manager
	lans      *netmon.Monitor // those that lan.interfaces allows
	sources   sources
	health    health.Tracker
	clock     *clock.Clock
	jumps     jumps // of the clock
	notify    *watchdog.Notifier
	answers   answers       // of the API server
	look      chan struct{} // makes the doctor look
	settings  *settings
	upgrade   upgrade
	footprint *footprint.Watch
	netpol    *netpol.Watcher
	burst     *burst.Manager
	page      *page
	// datastore is true once the engine's databases were looked at and are in order.
	datastore atomic.Bool
	// imagesNoted is what the node had when images.json was written; the node's watch alone uses it.
	imagesNoted string
	syncAgain   time.Time // when images are to be synced once more; zero: not

	mu          sync.Mutex
	bundle      bundle.Dir
	engine      *engine.Engine
	tunnel      *tunnel.Controller
	fabric      *fabric.Fabric
	routes      *routes
	offload     *offload.Offload
	client      kubernetes.Interface
	kubeVersion string
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
	cDNS       = "dns"
	cService   = "dns-service"
	cTunnel    = "tunnel"
	cFabric    = "fabric"
	cOffload   = "offload"
	cWatchdog  = "watchdog"
	cDoctor    = "doctor"
)

func (s *System) run(ctx context.Context) error {
	s.begun = time.Now()
	s.clock, s.jumps = s.newClock(), newJumps()
	s.footprint = s.newFootprint()
	s.look = make(chan struct{}, 1)
	s.netpol = netpol.NewWatcher(s.cfg.Log.With("component", cPolicies))
	s.lans = netmon.New(s.cfg.Log.With("component", cLANs))
	s.lans.Allow(s.settings.Now().Config.LAN.Interfaces)
	s.sources = newSources(s.lans, s.cfg.Log.With("component", cFabric))
	s.sources.set(s.settings.Now().Config.Peers)
	s.page = s.newPage()
	var err error
	if s.burst, err = s.newBurst(); err != nil {
		return err
	}
	s.manager, err = lifecycle.New(s.cfg.Log,
		lifecycle.Component{Name: cAPI, Run: s.runAPI},
		lifecycle.Component{Name: cConfig, Run: s.runConfig},
		lifecycle.Component{Name: cClock, Run: s.runClock}, // before all that mints
		lifecycle.Component{Name: cLANs, Run: s.runLANs},
		lifecycle.Component{Name: cPage, Run: s.runPage},
		lifecycle.Component{Name: cBundle, Run: s.runBundle},
		lifecycle.Component{Name: cWall, Run: s.runWall},
		lifecycle.Component{Name: cEngine, Needs: []string{cClock, cBundle, cWall}, Run: s.runEngine},
		lifecycle.Component{Name: cPolicies, Needs: []string{cEngine}, Run: s.runPolicies},
		lifecycle.Component{Name: cSnapshots, Needs: []string{cEngine}, Run: s.runSnapshots},
		lifecycle.Component{Name: cDates, Needs: []string{cEngine}, Run: s.runCertificates},
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
		lifecycle.Component{Name: cBurst, Needs: []string{cOffload}, Run: s.runBurst},
		lifecycle.Component{Name: cWatchdog, Needs: []string{cAPI}, Run: s.runWatchdog},
		lifecycle.Component{Name: cDoctor, Run: s.runDoctor},
	)
	if err != nil {
		return err
	}
	s.notify = watchdog.NewNotifier(s.cfg.Log)
	go s.tell(ctx)
	go s.footprint.Run(ctx)
	go s.showLamp(ctx)
	return s.manager.Run(ctx)
}

func (s *System) runAPI(ctx context.Context, stage *lifecycle.Stage) error {
	return api.Serve(ctx, s.cfg.Dirs.Run, s.apiRoutes(), stage.Ready)
}

// apiRoutes is what the command line may ask of the supervisor.
func (s *System) apiRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/alive", api.JSON(s.alive))
	mux.Handle("GET /v1/status", api.JSON(func(*http.Request) (any, error) { return s.Status(), nil }))
	s.savingRoutes(mux)
	s.healthRoutes(mux)
	s.checkRoutes(mux)
	s.configRoutes(mux)
	s.upgradeRoutes(mux)
	s.volumeRoutes(mux)
	s.trustRoutes(mux)
	s.burstRoutes(mux)
	return mux
}

func (s *System) runBundle(ctx context.Context, stage *lifecycle.Stage) error {
	dir, err := bundle.Unpack(filepath.Join(s.cfg.Dirs.State, "bundle"), s.cfg.Log.With("component", cBundle))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.bundle = dir
	s.mu.Unlock()
	stage.Ready()
	return s.keepBundle(ctx, dir)
}

// bundleLook is how often the helpers on disk are looked at: containerd and the
// kubelet call them by path whenever a pod starts, and name no cure when one is gone.
const bundleLook = 5 * time.Second

// keepBundle unpacks the helpers again when they are damaged while we run. It
// returns with an error when that fails, to be tried again.
func (s *System) keepBundle(ctx context.Context, dir bundle.Dir) error {
	tick := time.NewTicker(bundleLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if dir.Intact() {
			continue
		}
		if _, err := bundle.Unpack(filepath.Join(s.cfg.Dirs.State, "bundle"), s.cfg.Log.With("component", cBundle)); err != nil {
			return err
		}
	}
}

func (s *System) runEngine(ctx context.Context, stage *lifecycle.Stage) error {
	return s.keepEngine(ctx, stage, s.oneEngine)
}

// oneEngine runs an engine with the settings until it or ctx ends.
func (s *System) oneEngine(ctx context.Context, stage *lifecycle.Stage, set engineSettings) error {
	if err := host.EnsureNodeAddress(s.nodeIP, serviceCIDR); err != nil {
		return err
	}
	looked := false // at the databases, since the last engine
	var e *engine.Engine
	s.mu.Lock()
	e = engine.New(engine.Config{
		Executable: s.exe, Argv0: s.cfg.EngineName,
		StateDir: s.cfg.Dirs.State, RunDir: s.cfg.Dirs.Run,
		BundleBin: s.bundle.Bin(), PauseImage: s.bundle.Image("pause"), Iptables: s.chooseIptables(s.bundle),
		NodeName: s.nodeName, NodeIP: s.nodeIP,
		PodCIDR: podCIDR, ServiceCIDR: serviceCIDR, ClusterDNS: clusterDNS,
		Facts: s.facts,
		Before: func(ctx context.Context) (err error) {
			err = errors.Join(s.prepareDatastore(ctx, e), s.prepareContainerd(ctx))
			looked = err == nil
			s.datastore.Store(looked)
			if err != nil {
				return err
			}
			return s.prepareDates(ctx, s.engine.DataDir())
		},
		ReserveCPU: set.ReserveCPU, ReserveMemory: set.ReserveMemory, Registries: set.Registries,
		Answered: s.answers.now, Log: s.cfg.Log.With("component", cEngine),
	})
	s.engine = e
	s.mu.Unlock()
	err := e.Run(ctx, stage.Waiting, func() {
		if err := s.connect(e); err != nil {
			s.cfg.Log.Error("cannot use the API server", "error", err)
			return
		}
		s.settings.engineStarts("")
		stage.Ready()
	})
	if err == nil && looked {
		s.stoppedClean()
	}
	return err
}

// connect makes the client that everything in the supervisor shares.
func (s *System) connect(e *engine.Engine) error {
	cfg, err := engine.RESTConfig(e.Kubeconfig())
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	v, err := client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	s.mu.Lock()
	news := s.kubeVersion != v.GitVersion
	s.client, s.kubeVersion = client, v.GitVersion
	fab := s.fabric
	s.mu.Unlock()
	if news && fab != nil { // it has told peers of itself without it
		fab.Refresh()
	}
	return nil
}

func (s *System) kube() kubernetes.Interface {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

func (s *System) runNode(ctx context.Context, stage *lifecycle.Stage) error {
	stage.Waiting("for the cluster's controllers")
	if err := engine.WaitAccounts(ctx, s.kube()); err != nil {
		return err
	}
	stage.Waiting("for the kubelet to report")
	return engine.WatchNode(ctx, s.kube(), s.nodeName, func(node *corev1.Node, ready bool, message string) {
		if ready {
			stage.Ready()
			s.containerdServes()
			s.noteImages(ctx, node)
			return
		}
		stage.Waiting("node is not ready: %s", message)
	})
}

func (s *System) dnsAddr() netip.AddrPort { return netip.AddrPortFrom(s.nodeIP, dnsPort) }

func (s *System) runDNS(ctx context.Context, stage *lifecycle.Stage) error {
	if err := host.EnsureNodeAddress(s.nodeIP, serviceCIDR); err != nil {
		return err
	}
	server := dns.New(dns.Config{
		Addr: s.dnsAddr(), Kubeconfig: engine.Kubeconfig(s.cfg.Dirs.State),
		ClusterDomain: clusterDomain, ServiceIP: clusterDNS, Memory: filepath.Join(s.cfg.Dirs.Run, "dns.json"),
		Log: s.cfg.Log.With("component", cDNS),
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
	if err := dns.EnsureService(ctx, s.kube(), clusterDNS, s.dnsAddr()); err != nil {
		return err
	}
	stage.Ready()
	<-ctx.Done()
	return nil
}

// version for peers: the API server's once it is known.
func (s *System) kubeVersionNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kubeVersion
}

func rivuletVersion() string { return version.Version }
