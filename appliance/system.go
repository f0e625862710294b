package appliance

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"rivulet/appliance/addons/clusterset"
	"rivulet/appliance/addons/ingress"
	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/burst"
	"rivulet/appliance/config"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/fleet"
	"rivulet/appliance/diagnose/history"
	"rivulet/appliance/diagnose/prometheus/endpoint"
	"rivulet/appliance/engine"
	"rivulet/appliance/engine/certs"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/engine/images"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/firstboot"
	"rivulet/appliance/lifetime/nodes"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/neighbour"
	"rivulet/appliance/machine/usage"
	"rivulet/appliance/machine/watchdog"
	"rivulet/appliance/network"
	"rivulet/appliance/network/users"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/ui/statuspage"
	"rivulet/appliance/ui/webconsole"
	"rivulet/appliance/vcluster"
	"rivulet/appliance/version"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/netmon"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/image/bundle"
	"rivulet/offload"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
)

// System has the subsystems of a running appliance. Its fields are set before the manager runs and do not change,
// except those that components set.
type System struct {
	cfg        Config
	exe        string
	facts      host.Facts
	store      *bolt.Store
	id         identity.Identity
	self       rpc.Identity
	worker     nodes.Role
	nodeName   string // permanent; the cluster's name for its peers, name(), may change
	volumes    *volumes.Local
	nodeIP     netip.Addr
	virtual    *host.Further // addresses of virtual nodes
	begun      time.Time
	manager    *lifecycle.Manager
	lans       *netmon.Monitor // those that lan.interfaces allows
	sources    network.Sources
	health     health.Tracker
	clock      *clock.Clock
	engine     *engine.Handle
	supervisor *engine.Supervisor // of the engine
	certs      *certs.Renewer
	database   *datastore.Guard
	images     *images.Containerd
	notify     *watchdog.Notifier
	answers    watchdog.Answers // of the API server
	doctor     *doctor.Watcher
	fleet      *fleet.Fleet
	settings   *config.Follower
	upgrade    *upgrade.Handover
	usage      *usage.Watch
	rules      *nft.Guard
	netpol     *networkpolicy.Watcher
	burst      *burst.Manager
	services   *clusterset.Set
	vclusters  *vcluster.Manager
	metrics    *endpoint.Endpoint
	history    *history.Recorder
	users      *users.Access
	page       *statuspage.Page
	console    *webconsole.Console
	nodes      *nodes.Device
	heldPods   *isolation.Held
	homeAddrs  *homeaddr.Pods
	// inOrder is true once the engine's databases were checked and are sound.
	inOrder atomic.Bool
	// virtualNodes signals their changes: ready, cordoned.
	virtualNodes changes.Signal
	opened       loadbalancer.Opened

	// Fields that components set are nil before. A component that needs another one runs after that is Ready, and finds
	// its field set.
	bundle  atomic.Pointer[bundle.Dir]
	tunnel  atomic.Pointer[tunnel.Controller]
	fabric  atomic.Pointer[fabric.Fabric]
	offload atomic.Pointer[offload.Offload]
	ingress atomic.Pointer[ingress.Controller]
}

// needed are the components without which no pod can be scheduled and resolve names.
var needed = lifecycle.Essential{"bundle", "engine", "node", "dns", "dns-service"}

// log is that of a component, before it runs.
func (s *System) log(component string) *slog.Logger { return s.cfg.Log.With("component", component) }

func (s *System) run(ctx context.Context) error {
	s.newEngine()
	s.doctor = doctor.NewWatcher(&s.health, s.cfg.Dirs.State, s.cfg.Dirs.Run, s.nodeIP, s)
	s.usage = usage.New(usage.Config{
		PIDs: func() map[string]int { return usage.PIDs(s.cfg.Dirs.Run) }, Peers: func() []peer.View { return s.peering(context.Background()).Peers },
		StateDir: s.cfg.Dirs.State, RAM: s.facts.MemoryBytes, Health: &s.health, Log: s.log("footprint"),
	})
	s.rules, s.netpol = nft.NewGuard(0, s.log("rules")), networkpolicy.NewWatcher(s.log("policies"))
	s.lans = netmon.New(s.log("lans"))
	s.lans.Allow(s.config().LAN.Interfaces)
	s.sources = network.NewSources(s.lans, s.log("fabric"))
	s.sources.Set(s.config().Peers)
	s.newPages()
	s.nodes = nodes.New(&nodes.Device{Role: s.worker, State: s.cfg.Dirs.State, NodeName: s.nodeName, ID: s.id.ID(), Name: s.name, Kubernetes: version.Kubernetes(), API: s.engine.REST, Fabric: s.fabric.Load, Address: s.nodeIP, AddressOf: network.NodeAddress, Taken: s.virtual.Has,
		Block: func() netip.Prefix { return s.config().Tunnel.Block() }, Policies: s.netpol, Health: &s.health, Token: func() string { return s.config().Join.Reveal() }, LANs: s.lans, Folders: s.volumes, Upgrade: s.upgrade, Restart: s.upgrade.Restart, Tenants: nodes.Tenants{Offload: s.offload.Load, Isolation: s.isolation, Home: network.Home(s.fabric.Load, s.peerImages), Images: s.images}, Failover: nodes.Failover{Store: s.store, Settings: func() string { return s.settings.Now().Cluster(s.name()) }, Database: func() string { return s.config().Datastore.Reveal() }, Tunnel: s.tunnel.Load}, Log: s.log(nodes.Component)})
	s.notify, s.heldPods = watchdog.NewNotifier(s.cfg.Log), isolation.NewHeld()
	s.fleet = fleet.New(fleet.Config{Fabric: &s.fabric, Supervisor: s, Settings: s.settings})
	s.vclusters = vcluster.New(vcluster.Config{State: s.cfg.Dirs.State, Run: s.cfg.Dirs.Run, Executable: s.exe, ID: s.id.ID(), Address: s.nodeIP, Services: fixed.ServiceCIDR, DNS: fixed.ClusterDNS, Pods: fixed.PodCIDR, Addresses: s.nodes.Pods(s.heldPods), Standbys: s.worker.Leased(), Log: s.log("vclusters")})
	s.homeAddrs, s.users, s.metrics, s.services = homeaddr.New(fixed.ClusterDNS, fixed.ServiceCIDR), s.newUsers(), s.newMetrics(), s.newServices()
	s.history = history.New(history.Config{Dir: paths.History(s.cfg.Dirs.State), Supervisor: s, VClusters: vcluster.Usages{Of: s.vclusters}, Clock: s.clock, Log: s.log("history")})
	s.settings.Apply, s.settings.LANs, s.settings.Health = s.apply, s.lans.Changed, &s.health
	home := burst.Home{Cluster: string(s.id.ID()), API: fixed.ControlAPI, Fabric: s.fabric.Load, Offload: s.offload.Load, Client: s.engine.Client, Bundle: s.bundle.Load, Log: s.log("burst")}
	var err error
	if s.burst, err = burst.New(burst.Config{Store: s.store, Key: s.id.Key, Cluster: home.Cluster, Health: &s.health, Gateway: home.Gateway, Log: home.Log}); err != nil {
		return err
	}
	if s.manager, err = lifecycle.New(s.cfg.Log, s.components()...); err != nil {
		return err
	}
	go s.notify.Notify(ctx, s.manager, "api", needed, func(took time.Duration) {
		s.cfg.Log.Info("ready: pods can be scheduled", "name", s.name(), "after", took.Round(100*time.Millisecond), "next", "rivulet status")
	})
	go s.usage.Run(ctx)
	go upgrade.Age{State: s.cfg.Dirs.State, Image: s.page.Image, Worker: s.worker.Joined != nil, Clock: s.clock, Fabric: &s.fabric, Health: &s.health, Log: s.log("age")}.Run(ctx)
	go s.showLamp(ctx)
	s.manager.Run(ctx)
	return nil
}

// components are all components, in the order in which they start.
func (s *System) components() []lifecycle.Component {
	return s.worker.Components([]lifecycle.Component{
		{Name: "api", Run: s.runAPI},
		{Name: "config", Run: s.settings.Run},
		{Name: "clock", Run: s.clock.Run}, // before all that issue certificates
		{Name: "lans", Run: lifecycle.AtOnce(s.lans.Run)},
		{Name: "status-page", Run: s.page.Run},
		{Name: "console", Run: s.console.Run},
		{Name: "metrics-endpoint", Run: s.metrics.Run},
		{Name: "data", Run: firstboot.Kept("/")}, {Name: "bundle", Needs: []string{"data"}, Run: s.runBundle},
		{Name: "alone", Needs: []string{"data"}, Run: neighbour.Alone(s.cfg.Dirs.Run)}, {Name: "rules", Needs: []string{"alone"}, Run: s.runRules},
		{Name: "host-firewall", Needs: []string{"alone"}, Run: s.runFirewall},
		{Name: "pod-gate", Needs: []string{"alone"}, Run: s.runPodGate},
		{Name: "images", Run: s.runImages},
		{Name: "tunnel", Needs: []string{"bundle", "alone"}, Run: s.runTunnel},
		{Name: "lease", Needs: []string{"tunnel"}, Run: s.nodes.RunLease},
		{Name: "engine", Needs: []string{"clock", "bundle", "host-firewall", "pod-gate", "images"}, Run: s.supervisor.Run},
		{Name: "policies", Needs: []string{"engine"}, Run: s.runPolicies},
		{Name: "snapshots", Needs: []string{"engine"}, Run: s.database.Run},
		{Name: "certificates", Needs: []string{"engine"}, Run: s.certs.Run},
		{Name: "node", Needs: []string{"engine"}, Run: s.runNode},
		{Name: "dns", Needs: []string{"bundle"}, Run: s.runDNS},
		{Name: "dns-service", Needs: []string{"engine"}, Run: s.runDNSService},
		{Name: "storage", Needs: []string{"engine"}, Run: s.runStorage},
		{Name: "metrics", Needs: []string{"engine"}, Run: s.runMetrics},
		{Name: "loadbalancer", Needs: []string{"engine", "lans"}, Run: s.runBalancer},
		{Name: "ingress", Needs: []string{"engine", "lans"}, Run: s.runIngress},
		{Name: "fabric", Needs: []string{"tunnel", "lans"}, Run: s.runFabric},
		{Name: nodes.Component, Needs: []string{"engine", "fabric"}, Run: s.nodes.Run},
		{Name: "peers", Needs: []string{"engine", "fabric"}, Run: s.runPeers},
		{Name: "vclusters", Needs: []string{"clock", "host-firewall"}, Run: s.runVClusters},
		{Name: "offload", Needs: []string{"engine", "fabric", "vclusters"}, Run: s.nodes.OffloadOn(s.runOffload)},
		{Name: "kubeconfig", Needs: []string{"engine", "fabric"}, Run: s.runUsers},
		{Name: "burst", Needs: []string{"offload"}, Run: s.runBurst},
		{Name: "services", Needs: []string{"engine", "offload"}, Run: s.services.Run},
		{Name: "virtual-clusters", Needs: []string{"engine", "vclusters"}, Run: s.runVirtualClusters},
		{Name: "history", Run: lifecycle.AtOnce(s.history.Run)},
		{Name: "watchdog", Needs: []string{"api"}, Run: s.runWatchdog},
		{Name: "doctor", Run: s.doctor.Run},
	})
}
