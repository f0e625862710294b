package appliance

import (
	"context"

	"rivulet/appliance/addons/netpol"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
)

const cPolicies = "policies"

// runPolicies holds pods to NetworkPolicies. Offload, which tells targets of them,
// reads the same watcher.
func (s *System) runPolicies(ctx context.Context, stage *lifecycle.Stage) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- s.netpol.Run(ctx, s.engine.Client())
		stop()
	}()
	stage.Ready() // without policies there is nothing to wait for
	err := netpol.Run(ctx, netpol.Config{
		World: s.netpol, Results: cniResults, Log: s.cfg.Log.With("component", cPolicies),
		Report: func(err error) { s.health.Report(health.NetworkPolicy, err) },
	})
	stop()
	if watch := <-ended; watch != nil {
		return watch
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
