package appliance

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/doctor"
	"rivulet/appliance/diagnose/doctor/peercheck"
	"rivulet/appliance/diagnose/problems"
	"rivulet/appliance/engine/images"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/watchdog"
	"rivulet/appliance/network"
	"rivulet/appliance/ui/led"
	"rivulet/appliance/ui/statuspage"
	"rivulet/appliance/ui/summary"
	"rivulet/fabric"
	"rivulet/fabric/tunnel"
	"rivulet/offload/nodeagent/admission"
	tenantimages "rivulet/offload/nodeagent/images"
	"rivulet/offload/nodeagent/podgate"
	"rivulet/systemd"
)

// problems is everything that is wrong, whoever knows it, in one list: the same for
// every screen.
func (s *System) problems() []health.Problem {
	made := s.made.get()
	problems.Collect(&s.health, made.fabric, made.offload, s.sources.DNS.Problems())
	return s.health.Problems()
}

// reportSetAside shows what damaged files lie set aside.
func (s *System) reportSetAside() { problems.SetAside(&s.health, s.cfg.Dirs.State) }

// runDoctor looks at the device from time to time, so that its problems are known
// before anybody asks.
func (s *System) runDoctor(ctx context.Context, stage *lifecycle.Stage) error {
	env := func() *doctor.Env {
		return doctor.Here(s.cfg.Dirs.State, s.cfg.Dirs.Run, func(context.Context) (api.Status, error) { return s.Status(), nil })
	}
	doctor.Watch(ctx, env, &s.health, s.look, stage.Ready)
	return nil
}

// lookAgain makes the doctor look now; it does not wait for it.
func (s *System) lookAgain() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// runWatchdog tells the service manager that we live.
func (s *System) runWatchdog(ctx context.Context, stage *lifecycle.Stage) error {
	return watchdog.Guard{
		State: s.cfg.Dirs.State, Answers: &s.answers, Notifier: s.notify, Health: &s.health, Log: s.cfg.Log.With("component", cWatchdog),
		Self: func(ctx context.Context) error {
			return api.Call(ctx, s.cfg.Dirs.Run, http.MethodGet, "/v1/alive", nil, nil)
		},
	}.Run(ctx, stage)
}

// alive answers the watchdog: the manager and the fields that all share can be had.
func (s *System) alive(*http.Request) (any, error) {
	s.manager.Status()
	s.engine.Client()
	return struct{}{}, nil
}

func (s *System) peerCheck() peercheck.Here {
	return peercheck.Here{
		Self: s.self, KubeVersion: s.engine.Version, DNS: s.dnsAddr(), Domain: clusterDomain,
		Fabric: func() *fabric.Fabric { return s.made.get().fabric },
		Tunnel: func() *tunnel.Controller { return s.made.get().tunnel },
	}
}

func (s *System) newPage() *statuspage.Page {
	_, err := os.Stat(systemd.ImageMark)
	p := statuspage.NewPage(statuspage.Device{
		View: func() summary.View { return summary.Of(s.Status(), time.Now()) },
		LANs: s.lans, Own: []netip.Prefix{podCIDR, serviceCIDR, nodeRange}, MDNS: s.sources.MDNS, Image: err == nil,
		Report: func(err error) { s.health.Report(health.StatusPage, err) },
		Log:    s.cfg.Log.With("component", cPage),
	})
	p.Configure(s.settings.Now().Config.StatusPage, s.hostNames())
	return p
}

// hostNames are what the device may be called on the LAN. The second is its own
// whoever else has the first, and the same after every start.
func (s *System) hostNames() []string {
	return []string{s.name(), s.name() + "-" + s.id.ID().Short()}
}

// showLamp says with the lamp of a device of the image what its screen would.
func (s *System) showLamp(ctx context.Context) {
	if !s.page.Image {
		return
	}
	led.Run(ctx, led.Dir, func() led.State {
		ready, _ := needed.Ready(s.manager.Status())
		return led.Of(s.problems(), ready)
	}, s.cfg.Log.With("component", "led"))
}

// runPodGate decides on the network of each pod that starts. The engine waits for it:
// without an answer no pod gets one.
func (s *System) runPodGate(ctx context.Context, stage *lifecycle.Stage) error {
	a := admission.Admission{Client: s.engine.Client, Held: s.heldPods, HomeAddrs: s.homeAddrs, Kubelet: kubeletDir}
	return podgate.Serve(ctx, podgate.Socket(s.cfg.Dirs.Run), a.Admit, stage.Ready)
}

// runImages keeps tenants' images apart. The engine waits for it: the kubelet asks it for images.
func (s *System) runImages(ctx context.Context, stage *lifecycle.Stage) error {
	return tenantimages.Run(ctx, tenantimages.Socket(s.cfg.Dirs.Run), images.Socket, tenantimages.RelayConfig{
		Registries: s.registries, Withheld: s.withheld, Home: network.Home(func() *fabric.Fabric { return s.made.get().fabric }, s.peerImages),
		Networks: func() []netip.Prefix { return host.Routes(tunnelInterface) },
		Folder:   filepath.Join(s.cfg.Dirs.State, "k3s", "agent", "etc", "containerd", "certs.d"),
	}, stage.Ready)
}
