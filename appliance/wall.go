package appliance

import (
	"context"
	"net/netip"

	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/firewall"
)

const cWall = "wall"

// podInterface is the bridge that pods are on.
const podInterface = "cni0"

// runWall keeps the LAN from what is the cluster's own. The engine waits for it, so
// that its ports are never open, and does not need it: a problem shows what is missing.
func (s *System) runWall(ctx context.Context, stage *lifecycle.Stage) error {
	firewall.Run(ctx, firewall.Config{
		Own: []string{"lo", podInterface, tunnelInterface}, Networks: []netip.Prefix{podCIDR, serviceCIDR, nodeRange}, Ports: []uint16{engine.PortAPI, engine.PortKubelet},
		Report: func(err error) { s.health.Report(health.Wall, err) }, Log: s.cfg.Log.With("component", cWall),
	}, stage.Ready)
	return nil
}
