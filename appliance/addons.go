package appliance

import (
	"context"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/engine"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/loadbalancer"
	"rivulet/appliance/metrics"
	"rivulet/appliance/statuspage"
	"rivulet/appliance/storage"
)

// The names of the add-ons among the components: what other clusters run as
// containers. A device is Ready without them.
const (
	cStorage  = "storage"
	cMetrics  = "metrics"
	cBalancer = "loadbalancer"
)

// volumesDir holds the folders of volumes.
func (s *System) volumesDir() string { return filepath.Join(s.cfg.Dirs.State, "storage") }

func (s *System) runStorage(ctx context.Context, stage *lifecycle.Stage) error {
	return storage.New(storage.Config{
		Client: s.kube(), Dir: s.volumesDir(), NodeName: s.nodeName,
		Health: &s.health, Log: s.cfg.Log.With("component", cStorage),
	}).Run(ctx, stage.Ready)
}

// metricsPort is taken on the node's own address only.
const metricsPort = 1443

func (s *System) runMetrics(ctx context.Context, stage *lifecycle.Stage) error {
	cfg, err := engine.RESTConfig(s.engine.Kubeconfig())
	if err != nil {
		return err
	}
	server, err := metrics.New(metrics.Config{
		API: cfg, Addr: netip.AddrPortFrom(s.nodeIP, metricsPort),
		ClientCA: filepath.Join(s.engine.DataDir(), "server", "tls", "request-header-ca.crt"),
		Health:   &s.health, Log: s.cfg.Log.With("component", cMetrics),
	})
	if err != nil {
		return err
	}
	return server.Run(ctx, stage.Ready)
}

// ownPorts are those that no Service may draw away from the device, whether somebody
// listens at the moment or not.
func ownPorts() map[loadbalancer.Port]string {
	tcp := func(n uint16) loadbalancer.Port { return loadbalancer.Port{Protocol: corev1.ProtocolTCP, Number: n} }
	udp := func(n uint16) loadbalancer.Port { return loadbalancer.Port{Protocol: corev1.ProtocolUDP, Number: n} }
	return map[loadbalancer.Port]string{
		tcp(6443): "the Kubernetes API", tcp(10250): "the kubelet",
		tcp(controlPort): "for peers", udp(controlPort): "the tunnel to peers", udp(5353): "the discovery of peers",
		tcp(dnsPort): "the cluster's DNS", udp(dnsPort): "the cluster's DNS", tcp(metricsPort): "the resource metrics",
		tcp(statuspage.Port): "the status page",
	}
}

func (s *System) runBalancer(ctx context.Context, stage *lifecycle.Stage) error {
	return loadbalancer.New(loadbalancer.Config{
		Client: s.kube(), LANs: s.lans, Own: ownPorts(), Yields: s.page.yields, Health: &s.health, Log: s.cfg.Log.With("component", cBalancer),
	}).Run(ctx, stage.Ready)
}
