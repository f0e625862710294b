package appliance

import (
	"context"
	"net/netip"
	"path/filepath"

	"rivulet/appliance/addons/clusterset"
	"rivulet/appliance/addons/clusterset/weights"
	"rivulet/appliance/addons/ingress"
	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/addons/resourcemetrics"
	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/prometheus"
	"rivulet/appliance/diagnose/prometheus/endpoint"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/network"
	"rivulet/appliance/ui/statuspage"
	"rivulet/appliance/vcluster"
)

func (s *System) runStorage(ctx context.Context, stage *lifecycle.Stage) error {
	return volumes.New(volumes.Config{Client: s.engine.Client(), Local: s.volumes, Worker: s.worker.Joined != nil, Health: &s.health, Log: stage.Log()}).Run(ctx, stage.Ready)
}

// metricsPort is used on the node's own address only.
const metricsPort = 1443

func (s *System) runMetrics(ctx context.Context, stage *lifecycle.Stage) error {
	cfg, err := s.engine.REST()
	if err != nil {
		return err
	}
	server, err := resourcemetrics.New(resourcemetrics.Config{
		API: cfg, Addr: netip.AddrPortFrom(s.nodeIP, metricsPort),
		ClientCA: filepath.Join(s.engine.DataDir(), "server", "tls", "request-header-ca.crt"), Health: &s.health, Log: stage.Log(),
	})
	if err != nil {
		return err
	}
	return server.Run(ctx, stage.Ready)
}

func (s *System) newMetrics() *endpoint.Endpoint {
	return endpoint.New(endpoint.Config{
		Store: s.store, Key: s.id.Key, Name: s.settings, Metrics: prometheus.Handler(s, vcluster.Usages{Of: s.vclusters}), Node: s.nodeIP, Port: api.MetricsPort,
		LAN: s.page, Pods: s.heldPods, Setting: s.config().Metrics,
	})
}

func (s *System) runBalancer(ctx context.Context, stage *lifecycle.Stage) error {
	return loadbalancer.New(loadbalancer.Config{
		Client: s.engine.Client(), LANs: s.lans, Own: statuspage.OwnPorts(metricsPort), Yields: s.page.Yields, Nodes: s.nodes.Balanced, NodesChanged: s.nodes.BalancedChanged, Opened: &s.opened, Health: &s.health, Log: stage.Log(),
	}).Run(ctx, stage.Ready)
}

func (s *System) runIngress(ctx context.Context, stage *lifecycle.Stage) error {
	c := ingress.New(ingress.Config{
		Client: s.engine.Client(), LANs: s.lans, Page: s.page, File: s.settings.Path(), Health: &s.health, Log: stage.Log(), Reaches: network.IsPod,
		Networks: func() []netip.Prefix { return []netip.Prefix{fixed.PodCIDR, s.config().Tunnel.Block()} },
	})
	s.ingress.Store(c)
	c.Switch(s.config().Ingress)
	return c.Run(ctx, stage.Ready)
}

func (s *System) newServices() *clusterset.Set {
	return clusterset.New(clusterset.Config{ID: s.id.ID(), API: s.engine.REST, Fabric: func() clusterset.Fabric { return s.fabric.Load() }, PodCIDR: func() netip.Prefix { return fixed.PodCIDR },
		Cordoned: network.Cordoned(s.offload.Load), NodesChanged: s.virtualNodes.Changed,
		Setting: func() config.Services { return s.config().Services }, Exported: func() { s.offload.Load().ExportedChanged() }, Log: s.log("services"),
		Weights: weights.New(weights.Config{Pods: fixed.PodCIDR, Services: fixed.ServiceCIDR, Guard: s.rules, Report: func(err error) { s.health.Report(health.ServiceWeights, err) }})})
}
