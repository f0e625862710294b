package appliance

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"rivulet/appliance/addons/peerobjects"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/doctor/peercheck"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/memory"
	"rivulet/appliance/network"
	"rivulet/appliance/network/users"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/ui/statuspage"
	"rivulet/appliance/ui/summary"
	"rivulet/appliance/ui/webconsole"
	"rivulet/appliance/version"
	"rivulet/fabric"
	"rivulet/fabric/lanpeers"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/systemd"
)

// runTunnel manages the data plane's process. It continues when the supervisor stops, as pods do, so that their
// connections are not interrupted.
func (s *System) runTunnel(ctx context.Context, stage *lifecycle.Stage) error {
	c := tunnel.NewController(tunnel.ControllerConfig{Helper: s.bundle.Load().Path("rivulet-tunnel"), Socket: filepath.Join(s.cfg.Dirs.Run, "tunnel.sock"), PIDFile: filepath.Join(s.cfg.Dirs.Run, "tunnel.pid"), LogFile: paths.TunnelLog(s.cfg.Dirs.State), Version: tunnel.HelperVersion, Log: stage.Log()})
	return c.Run(ctx, func() { s.tunnel.Store(c); stage.Ready() })
}

func (s *System) runFabric(ctx context.Context, stage *lifecycle.Stage) error {
	log := stage.Log()
	keys, err := identity.Load(s.store) // they may have changed since the start
	if err != nil {
		return err
	}
	f, err := fabric.New(fabric.Config{
		Identity: s.self, Name: s.name(), Trust: s.worker.Policy(network.Policy(s.settings.Now())), Node: s.nodeIP, Nodes: fixed.NodeRange, Brokers: network.Brokers(s.settings.Now()), Notes: s.store, Version: version.Version, KubeVersion: s.engine.Version,
		Port: fixed.ControlPort, TunnelPort: fixed.ControlPort, Interface: fixed.Tunnel,
		PodCIDR: fixed.PodCIDR, ServiceCIDR: fixed.ServiceCIDR, TunnelAddress: fixed.TunnelAddress,
		WireGuardKey: keys.WireGuard, Rotation: network.Rotation(s.store, keys, s.cfg.Log), Store: s.store, DataPlane: s.tunnel.Load(),
		Sources: s.worker.Sources(s.sources.All()), LANs: s.lans,
		Hardware: netmon.Hardware, InUse: network.PeersInUse(s.offload.Load), LANPeers: lanpeers.For(s.facts.MemoryBytes),
		PeerCIDR: s.nodes.PeerBlock(), Leased: s.worker.Leased(), Clock: s.clock, Log: log,
		TakenPrefixes: func() []netip.Prefix {
			return slices.Concat(host.Routes(fixed.Tunnel), host.Servers("/"), []netip.Prefix{fixed.NodeRange})
		},
	})
	if err != nil {
		return err
	}
	f.Handle(peercheck.Pattern, http.HandlerFunc(s.peerCheck().Answer))
	s.fleet.Serve(f)
	s.fabric.Store(f)
	s.settings.Settle() // changes made meanwhile
	go network.FollowPrefixes(ctx, f, s.nodes.PeerBlock, s.worker.Ranges(s.netpol), log)
	go memory.TrimAfterPeers(ctx, f.Changed, func() int { return len(f.Links()) }, log)
	stage.Ready()
	return f.Run(ctx)
}

// viewOf is how a peer sees pods; nil before the links are known, and for other clusters.
func (s *System) viewOf(id string) homeaddr.View {
	if f := s.fabric.Load(); f != nil {
		return homeaddr.ViewOf(s.offload.Load().Linked(f.Links()), peer.ID(id), fixed.PodCIDR, s.offload.Load().Under(peer.ID(id)))
	}
	return nil
}

// newUsers manages access to the API from the LAN.
func (s *System) newUsers() *users.Access {
	return users.New(users.Config{
		Store: s.store, Key: s.id.Key, Name: s.settings, Engine: s.engine, LAN: s.page, Port: fixed.ControlPort, Log: s.log("kubeconfig"),
		VClusters: s.vclusters, Clock: s.clock,
	})
}

func (s *System) runUsers(ctx context.Context, stage *lifecycle.Stage) error {
	return s.users.Run(ctx, s.fabric.Load().PassLAN, stage.Ready)
}

// runPeers represents the peers as objects of the cluster's API.
func (s *System) runPeers(ctx context.Context, stage *lifecycle.Stage) error {
	cfg, err := s.engine.REST()
	if err != nil {
		return err
	}
	peers := func() []peerobjects.View { return network.PeerObjects(s.peering(ctx).PeerList()) }
	return peerobjects.Run(ctx, peerobjects.Config{API: cfg, Fabric: s.fabric.Load(), NodesChanged: s.virtualNodes.Changed, Log: stage.Log(), Peers: peers}, stage.Ready)
}

// newPages creates what browsers on the LAN see.
func (s *System) newPages() {
	_, err := os.Stat(systemd.ImageMark)
	s.page = statuspage.NewPage(statuspage.Device{
		View: func() summary.View { return summary.Of(s.Status(), time.Now()) },
		LANs: s.lans, Own: fixed.Networks, MDNS: s.sources.MDNS, Image: err == nil,
		Report: func(err error) { s.health.Report(health.StatusPage, err) }, Log: s.log("status-page"),
	})
	s.console = webconsole.New(webconsole.Config{Store: s.store, StateDir: s.cfg.Dirs.State, RunDir: s.cfg.Dirs.Run, Executable: s.exe, REST: s.engine.REST, Client: s.engine.Client, Page: s.page, Health: &s.health, Log: s.log("console")})
	s.console.Configure(s.config(), s.hostNames())
}

// hostNames are the allowed names of the device on the LAN. The second is unique to it, and the same after every start.
func (s *System) hostNames() []string {
	return []string{s.name(), s.name() + "-" + s.id.ID().Short()}
}
