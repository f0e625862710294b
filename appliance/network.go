package appliance

import (
	"context"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"rivulet/appliance/diagnose/doctor/peercheck"
	"rivulet/appliance/engine"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/memory"
	"rivulet/appliance/network"
	"rivulet/appliance/network/users"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/version"
	"rivulet/fabric"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/offload"
	"rivulet/offload/nodeagent"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/podmemory"
)

// runTunnel keeps the data plane's process. It is left running when we stop, as
// pods are: what they talk to must not notice.
func (s *System) runTunnel(ctx context.Context, stage *lifecycle.Stage) error {
	c := tunnel.NewController(tunnel.ControllerConfig{
		Helper:  s.made.get().bundle.Path("rivulet-tunnel"),
		Socket:  filepath.Join(s.cfg.Dirs.Run, "tunnel.sock"),
		PIDFile: filepath.Join(s.cfg.Dirs.Run, "tunnel.pid"),
		LogFile: filepath.Join(s.cfg.Dirs.State, "log", "tunnel.log"),
		Version: tunnel.HelperVersion,
		Log:     s.cfg.Log.With("component", cTunnel),
	})
	if err := c.Start(ctx); err != nil {
		return err
	}
	s.made.set(func(p *parts) { p.tunnel = c })
	stage.Ready()
	<-ctx.Done()
	c.Detach()
	return nil
}

func (s *System) runFabric(ctx context.Context, stage *lifecycle.Stage) error {
	log := s.cfg.Log.With("component", cFabric)
	keys, err := identity.Load(s.store) // they may be others than at the start
	if err != nil {
		return err
	}
	f, err := fabric.New(fabric.Config{
		Identity: s.self, Name: s.name(), Trust: network.Policy(s.settings.Now()), Notes: s.store, Version: version.Version, KubeVersion: s.engine.Version,
		Port: controlPort, TunnelPort: controlPort, Interface: tunnelInterface,
		PodCIDR: podCIDR, ServiceCIDR: serviceCIDR, TunnelAddress: tunnelAddress,
		WireGuardKey: keys.WireGuard, Rotation: network.Rotation(s.store, keys, s.cfg.Log), Store: s.store, DataPlane: s.made.get().tunnel,
		Sources: s.sources.All(), LANs: s.lans,
		Hardware: netmon.Hardware, InUse: s.peersInUse, LANPeers: fabric.LANPeersFor(s.facts.MemoryBytes),
		PeerCIDR: s.settings.Now().Config.Tunnel.Block(), TakenPrefixes: takenPrefixes, Clock: s.clock, Log: log,
	})
	if err != nil {
		return err
	}
	f.Handle(peercheck.Pattern, http.HandlerFunc(s.peerCheck().Answer))
	s.made.set(func(p *parts) { p.fabric, p.routes = f, network.NewRoutes(f) })
	s.settle() // what has changed meanwhile
	go netmon.FollowRoutes(ctx, tunnelInterface, log, f.CheckPrefixes)
	changed, stop := f.Changed()
	defer stop()
	go memory.TrimAfterPeers(ctx, changed, func() int { return len(f.Links()) }, log)
	stage.Ready()
	return f.Run(ctx)
}

// runLANs follows the device's LANs, for all who ask.
func (s *System) runLANs(ctx context.Context, stage *lifecycle.Stage) error {
	go s.followLANs(ctx, s.lans)
	stage.Ready()
	return s.lans.Run(ctx)
}

// peersInUse is not known before offload runs.
func (s *System) peersInUse(ctx context.Context) (map[peer.ID]bool, bool) {
	if o := s.made.get().offload; o != nil {
		return o.PeersInUse(ctx)
	}
	return nil, false
}

// takenPrefixes are those that a peer must not be seen under, beside what the
// fabric knows itself.
func takenPrefixes() []netip.Prefix {
	return slices.Concat(host.Routes(tunnelInterface), host.Servers("/"), []netip.Prefix{nodeRange})
}

// cniResults is where libcni, in containerd, keeps what it has made for each pod.
const cniResults = "/var/lib/cni/results"

// viewOf is how a peer sees pods; nil before the links are known, and of others.
func (s *System) viewOf(id string) homeaddr.View {
	if f := s.made.get().fabric; f != nil {
		return homeaddr.ViewOf(f.Links(), peer.ID(id), podCIDR)
	}
	return nil
}

// kubeletDir is the kubelet's folder.
const kubeletDir = "/var/lib/kubelet"

func (s *System) runOffload(ctx context.Context, stage *lifecycle.Stage) error {
	// A peer may have the name of our own node: before that is registered, the
	// peer's virtual node would take it, and the kubelet would take it over.
	stage.Waiting("for node %s to be registered", s.nodeName)
	if err := engine.WaitNode(ctx, s.engine.Client(), s.nodeName); err != nil {
		return nil //nolint:nilerr // stopped
	}
	made := s.made.get()
	home, err := s.engine.REST()
	if err != nil {
		return err
	}
	o, err := offload.New(offload.Config{
		Home: home, ClusterID: string(s.id.ID()), ClusterName: s.name,
		NodeName: s.nodeName, NodeIP: s.nodeIP, PodCIDR: podCIDR,
		Control:      netip.AddrPortFrom(tunnelAddress, controlPort),
		ServerTLSDir: filepath.Join(s.engine.DataDir(), "server", "tls"),
		Peers:        made.routes, Share: s.share, Withheld: s.withheld, Log: s.cfg.Log.With("component", cOffload),
		NodesChanged: s.nodes.Notify,
		Memory:       host.RAM(),
		PodMemory:    podmemory.Here,
		Volumes:      s.volumes,
		Images:       s.images.Architectures, PeerImages: s.images, PeerImagesOn: s.peerImages,
		Policies:  s.netpol,
		Hosted:    s.vclusters,
		Isolation: &nodeagent.Node{Held: s.heldPods, HomeAddrs: s.homeAddrs, Results: cniResults, DNS: clusterDNS, Interface: tunnelInterface, Networks: func() []netip.Prefix { return host.Routes(tunnelInterface) }},
	})
	if err != nil {
		return err
	}
	s.made.set(func(p *parts) { p.offload = o })
	s.burst.Attach(o.SetTargets)
	s.vclusters.Attach(o.Twins())
	stage.Ready()
	return o.Run(ctx)
}

// newUsers is who may use the API from the LAN.
func (s *System) newUsers() *users.Access {
	return users.New(users.Config{
		Store: s.store, Key: s.id.Key, Name: s.name, REST: s.engine.REST, Addresses: s.page.Addresses, Port: controlPort, Log: s.cfg.Log.With("component", cUsers),
		Now: func() (time.Time, bool) { return time.Now(), s.clock.Status().Plausible },
	})
}

func (s *System) runUsers(ctx context.Context, stage *lifecycle.Stage) error {
	return s.users.Run(ctx, s.made.get().fabric.PassLAN, stage.Ready)
}
