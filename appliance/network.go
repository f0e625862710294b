package appliance

import (
	"context"
	"net/http"
	"net/netip"
	"path/filepath"

	"rivulet/appliance/engine"
	"rivulet/appliance/host"
	"rivulet/appliance/identity"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/storage"
	"rivulet/fabric"
	"rivulet/fabric/ipam"
	"rivulet/fabric/netmon"
	"rivulet/fabric/tunnel"
	"rivulet/offload"
)

// runTunnel keeps the data plane's process. It is left running when we stop, as
// pods are: what they talk to must not notice.
func (s *System) runTunnel(ctx context.Context, stage *lifecycle.Stage) error {
	s.mu.Lock()
	c := tunnel.NewController(tunnel.ControllerConfig{
		Helper:  s.bundle.Path("rivulet-tunnel"),
		Socket:  filepath.Join(s.cfg.Dirs.Run, "tunnel.sock"),
		PIDFile: filepath.Join(s.cfg.Dirs.Run, "tunnel.pid"),
		LogFile: filepath.Join(s.cfg.Dirs.State, "log", "tunnel.log"),
		Version: tunnel.HelperVersion,
		Log:     s.cfg.Log.With("component", cTunnel),
	})
	s.mu.Unlock()
	if err := c.Start(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.tunnel = c
	s.mu.Unlock()
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
		Identity: s.self, Name: s.name(), Trust: s.policy(), Notes: s.store, Version: rivuletVersion(), KubeVersion: s.kubeVersionNow,
		Port: controlPort, TunnelPort: controlPort, Interface: tunnelInterface,
		PodCIDR: podCIDR, ServiceCIDR: serviceCIDR, TunnelAddress: tunnelAddress,
		WireGuardKey: keys.WireGuard, Rotation: s.rotation(keys), Store: s.store, DataPlane: s.tunnel,
		Sources: s.sources.all(), LANs: s.lans,
		ChoosePrefix: ipam.Choose, TakenPrefixes: takenPrefixes, Clock: s.clock, Log: log,
	})
	if err != nil {
		return err
	}
	f.Handle("POST "+checkPath, http.HandlerFunc(s.answerCheck))
	s.mu.Lock()
	s.fabric, s.routes = f, newRoutes(f)
	s.mu.Unlock()
	s.settle() // what has changed meanwhile
	go netmon.FollowRoutes(ctx, tunnelInterface, log, f.CheckPrefixes)
	go s.trimAfterPeers(ctx, f)
	stage.Ready()
	return f.Run(ctx)
}

// runLANs follows the device's LANs, for all who ask.
func (s *System) runLANs(ctx context.Context, stage *lifecycle.Stage) error {
	go s.followLANs(ctx, s.lans)
	stage.Ready()
	return s.lans.Run(ctx)
}

// takenPrefixes are those that a peer must not be seen under, beside what the
// fabric knows itself.
func takenPrefixes() []netip.Prefix {
	return append(host.Routes(tunnelInterface), nodeRange)
}

// cniResults is where libcni, in containerd, keeps what it has made for each pod.
const cniResults = "/var/lib/cni/results"

func (s *System) runOffload(ctx context.Context, stage *lifecycle.Stage) error {
	// A peer may have the name of our own node: before that is registered, the
	// peer's virtual node would take it, and the kubelet would take it over.
	stage.Waiting("for node %s to be registered", s.nodeName)
	if err := engine.WaitNode(ctx, s.kube(), s.nodeName); err != nil {
		return nil // stopped
	}
	home, err := engine.RESTConfig(s.engine.Kubeconfig())
	if err != nil {
		return err
	}
	o, err := offload.New(offload.Config{
		Home: home, ClusterID: string(s.id.ID()), ClusterName: s.name,
		NodeName: s.nodeName, NodeIP: s.nodeIP, PodCIDR: podCIDR,
		Control:      netip.AddrPortFrom(tunnelAddress, controlPort),
		ServerTLSDir: filepath.Join(s.engine.DataDir(), "server", "tls"),
		Peers:        s.routes, Share: s.share, Log: s.cfg.Log.With("component", cOffload),
		Volumes:   storage.NewLocal(s.volumesDir(), s.nodeName),
		Images:    s.imagePlatforms,
		Policies:  s.netpol,
		Isolation: &offload.Isolation{Results: cniResults, DNS: clusterDNS, Networks: func() []netip.Prefix { return host.Routes(tunnelInterface) }},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.offload = o
	s.mu.Unlock()
	s.burst.Attach(o.SetTargets)
	stage.Ready()
	return o.Run(ctx)
}
