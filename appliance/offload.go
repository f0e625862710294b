package appliance

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine"
	"rivulet/appliance/engine/images"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/vcluster/courses"
	"rivulet/offload"
	"rivulet/offload/nodeagent"
	"rivulet/offload/nodeagent/admission"
	"rivulet/offload/nodeagent/podgate"
	tenantimages "rivulet/offload/nodeagent/tenantimages"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

func (s *System) runOffload(ctx context.Context, stage *lifecycle.Stage) error {
	// A peer may have the name of this cluster's node: before that is registered, the peer's virtual node would get the
	// name, and the kubelet would take it over.
	stage.Waiting("for node %s to be registered", s.nodeName)
	if err := engine.WaitNode(ctx, s.engine.Client(), s.nodeName); err != nil {
		return nil //nolint:nilerr // stopped
	}
	home, err := s.engine.REST()
	if err != nil {
		return err
	}
	o, err := offload.New(offload.Config{
		Home: home, ClusterID: string(s.id.ID()), ClusterName: s.name,
		NodeName: s.nodeName, NodeIP: s.nodeIP, NodeAddress: s.virtual.Take, PodCIDR: fixed.PodCIDR,
		Control:      fixed.ControlAPI,
		ServerTLSDir: filepath.Join(s.engine.DataDir(), "server", "tls"),
		Peers:        s.fabric.Load(), Nodes: func() policy.Nodes { return s.config().Nodes() }, Shares: func() offer.Shares { return s.config().Lent() }, Withheld: s.withheld, Log: stage.Log(),
		NodesChanged: s.virtualNodes.Notify,
		Memory:       host.RAM(), PodMemory: s.nodes.Memory(),
		Volumes: s.nodes.Volumes(), LAN: loadbalancer.Lent(s.lans, func() offer.Ports { return s.config().VClusters.PortRange() }),
		Images: s.images.Architectures, PeerImages: s.images, PeerImagesOn: s.peerImages,
		Policies: s.netpol, Exported: s.services.Openings, Hosted: s.vclusters, Isolation: s.isolation(),
	})
	if err != nil {
		return err
	}
	s.offload.Store(o)
	s.burst.Attach(o.SetTargets)
	s.vclusters.Attach(o.Twins(), tenancy.Room(o.Twins()))
	go s.vclusters.FollowTargets(ctx, s.fabric.Load(), fixed.ControlAPI, o.HomeAPI())
	stage.Ready()
	return o.Run(ctx)
}

func (s *System) isolation() *nodeagent.Node {
	return &nodeagent.Node{Rules: s.rules, Held: s.heldPods, HomeAddrs: s.homeAddrs, Results: fixed.CNIResults, DNS: fixed.ClusterDNS, Interface: fixed.Tunnel, Networks: func() []netip.Prefix { return host.Routes(fixed.Tunnel) }}
}

func (s *System) runBurst(ctx context.Context, stage *lifecycle.Stage) error {
	s.burst.Configure(s.config().Burst)
	stage.Ready()
	return s.burst.Run(ctx)
}

func (s *System) runVClusters(ctx context.Context, stage *lifecycle.Stage) error {
	if _, err := host.EnsureNodeAddress(s.nodeIP, fixed.ServiceCIDR); err != nil {
		return err
	}
	return s.vclusters.Run(ctx, stage.Ready)
}

// runVirtualClusters manages those of objects of this cluster's API, and Courses.
func (s *System) runVirtualClusters(ctx context.Context, stage *lifecycle.Stage) error {
	home, err := s.engine.REST()
	if err != nil {
		return err
	}
	return courses.RunAll(ctx, courses.Objects{API: home, Clusters: s.vclusters, Log: stage.Log()}, s.images, s.clock.Status, stage.Ready)
}

// runPodGate decides on the network of each pod that starts. The engine waits for it: without an answer no pod starts.
func (s *System) runPodGate(ctx context.Context, stage *lifecycle.Stage) error {
	a := admission.Admission{Client: s.engine.Client, Held: s.heldPods, HomeAddrs: s.homeAddrs, Kubelet: fixed.Kubelet}
	return podgate.Serve(ctx, podgate.Socket(s.cfg.Dirs.Run), a.Admit, stage.Ready)
}

// runImages separates images of tenants. The engine waits for it, because the kubelet requests images from it.
func (s *System) runImages(ctx context.Context, stage *lifecycle.Stage) error {
	return tenantimages.Run(ctx, tenantimages.Socket(s.cfg.Dirs.Run), images.Socket, s.vclusters, tenantimages.RelayConfig{
		Registries: func() string { return cmp.Or(s.config().Registries.InForce()) }, Withheld: s.withheld, Home: s.nodes.HomeOf, Server: s.nodes.ServerImages(),
		Networks: func() []netip.Prefix { return host.Routes(fixed.Tunnel) },
		Folder:   paths.Agent(s.cfg.Dirs.State, "etc", "containerd", "certs.d"),
	}, stage.Ready)
}
