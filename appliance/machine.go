package appliance

import (
	"context"
	"net/http"

	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/problems"
	"rivulet/appliance/engine"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/firewall"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/watchdog"
	"rivulet/appliance/ui/led"
)

// runFirewall closes the cluster's ports to the LAN before the engine starts. A failure is a health problem.
func (s *System) runFirewall(ctx context.Context, stage *lifecycle.Stage) error {
	firewall.Run(ctx, firewall.Config{
		Own: []string{"lo", fixed.Bridge, fixed.Tunnel}, Networks: fixed.Networks, Ports: []uint16{engine.PortAPI, engine.PortKubelet},
		Guard: s.rules, Health: &s.health,
	}, stage.Ready)
	return nil
}

// runRules restores network state that other programs change.
func (s *System) runRules(ctx context.Context, stage *lifecycle.Stage) error {
	return host.Network{
		Node: s.nodeIP, Services: fixed.ServiceCIDR, Bridge: fixed.Bridge, Further: s.virtual, Rules: s.rules, Log: stage.Log(), Health: &s.health, Networks: fixed.Networks, Ranges: s.nodes,
	}.Keep(ctx, stage.Ready)
}

// problems are the problems of all components in one list, the same for every output.
func (s *System) problems() []health.Problem {
	problems.Collect(&s.health, s.fabric.Load(), s.offload.Load(), s.nodes.IsolationProblems(), s.sources.DNS.Problems())
	return s.health.Problems()
}

// runWatchdog notifies the service manager that the supervisor is alive.
func (s *System) runWatchdog(ctx context.Context, stage *lifecycle.Stage) error {
	return watchdog.Guard{
		State: s.cfg.Dirs.State, Answers: &s.answers, Notifier: s.notify, Health: &s.health, Log: stage.Log(),
		Self: func(ctx context.Context) error {
			return api.Call(ctx, s.cfg.Dirs.Run, http.MethodGet, "/v1/alive", nil, nil)
		},
	}.Run(ctx, stage)
}

// showLamp shows the state by the lamp of a device with the image.
func (s *System) showLamp(ctx context.Context) {
	if s.page.Image {
		led.Run(ctx, led.Dir, func() led.State {
			ready, _ := needed.Ready(s.manager.Status())
			return led.Of(s.problems(), ready)
		}, s.log("led"))
	}
}
