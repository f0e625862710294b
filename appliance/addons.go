package appliance

import (
	"context"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/ingress"
	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/addons/resourcemetrics"
	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/prometheus"
	"rivulet/appliance/diagnose/prometheus/endpoint"
	"rivulet/appliance/engine"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/network"
	"rivulet/appliance/ui/statuspage"
	"rivulet/appliance/vcluster"
)

func (s *System) runStorage(ctx context.Context, stage *lifecycle.Stage) error {
	return volumes.New(volumes.Config{
		Client: s.engine.Client(), Local: s.volumes, Health: &s.health, Log: stage.Log(),
	}).Run(ctx, stage.Ready)
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
		Store: s.store, Key: s.id.Key, Name: s.name, Metrics: prometheus.Handler(s.Status, vcluster.Usages(s.vclusters)), Node: s.nodeIP, Port: api.MetricsPort,
		LAN: s.page.Admit, Pod: s.heldPods.Own, Addresses: s.page.Addresses, Setting: s.config().Metrics,
	})
}

// ownPorts are those that no Service may use on the device, whether a program listens there now or not.
func ownPorts() map[loadbalancer.Port]string {
	tcp := func(n uint16) loadbalancer.Port { return loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: n} }
	udp := func(n uint16) loadbalancer.Port { return loadbalancer.Port{Protocol: corev1.ProtocolUDP, Number: n} }
	return map[loadbalancer.Port]string{
		tcp(engine.PortAPI): "the Kubernetes API", tcp(engine.PortKubelet): "the kubelet",
		tcp(fixed.ControlPort): "for peers", udp(fixed.ControlPort): "the tunnel to peers", udp(5353): "the discovery of peers",
		tcp(fixed.DNSPort): "the cluster's DNS", udp(fixed.DNSPort): "the cluster's DNS", tcp(metricsPort): "the resource metrics",
		tcp(statuspage.Port): "the status page", tcp(api.MetricsPort): "the metrics",
	}
}

func (s *System) runBalancer(ctx context.Context, stage *lifecycle.Stage) error {
	return loadbalancer.New(loadbalancer.Config{
		Client: s.engine.Client(), LANs: s.lans, Own: ownPorts(), Yields: s.page.Yields, Opened: &s.opened, Health: &s.health, Log: stage.Log(),
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
