package appliance

import (
	"context"
	"net/netip"
	"path/filepath"

	"rivulet/appliance/engine"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/metrics"
	"rivulet/appliance/storage"
)

// The names of the add-ons among the components: what other clusters run as
// containers. A device is Ready without them.
const (
	cStorage = "storage"
	cMetrics = "metrics"
)

func (s *System) runStorage(ctx context.Context, stage *lifecycle.Stage) error {
	return storage.New(storage.Config{
		Client: s.kube(), Dir: filepath.Join(s.cfg.Dirs.State, "storage"), NodeName: s.nodeName,
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
