package appliance

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"rivulet/appliance/api"
	"rivulet/appliance/config/fixed"
	"rivulet/appliance/diagnose/doctor/peercheck"
	"rivulet/appliance/diagnose/places"
	"rivulet/appliance/diagnose/support"
	"rivulet/appliance/diagnose/trace"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/machine/usage"
	"rivulet/appliance/network"
	"rivulet/appliance/version"
)

func (s *System) runAPI(ctx context.Context, stage *lifecycle.Stage) error {
	return api.ServeAll(ctx, s.cfg.Dirs.Run, s.apiRoutes(), stage.Log(), stage.Ready)
}

// apiRoutes are the supervisor's routes for the command line.
func (s *System) apiRoutes() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, answer func() (any, error)) {
		mux.Handle(path, api.JSON(func(*http.Request) (any, error) { return answer() }))
	}
	get("GET /v1/alive", func() (any, error) { // for the watchdog: the manager and the shared fields can be locked
		s.manager.Status()
		s.engine.Client()
		return struct{}{}, nil
	})
	get("GET /v1/status", func() (any, error) { return s.Status(), nil })
	get("GET /v1/health", func() (any, error) { return api.Health{Problems: s.problems()}, nil })
	get("GET /v1/facts", upgrade.Facts(func() api.Facts {
		return api.Facts{Name: s.name(), NodeName: s.nodeName, ID: s.id.ID(), Version: version.Version, Kubernetes: cmp.Or(s.engine.Version(), version.Kubernetes()), Executable: s.exe}
	}))
	mux.Handle("GET /v1/store", api.Bytes(s.store)) // a running supervisor has it locked
	mux.HandleFunc("GET /v1/goroutines", support.Goroutines)
	network.Volumes(mux, s.offload.Load)
	s.configuration().Routes(mux)
	s.doctor.Routes(mux)
	s.peerCheck().Routes(mux)
	s.fleet.Routes(mux)
	trace.Here{Engine: s.engine, Supervisor: s, Policies: s.netpol, DNS: s.dnsAddr(), State: s.cfg.Dirs.State}.Routes(mux)
	s.upgrade.Routes(mux)
	network.Decisions(mux, s.fabric.Load)
	s.nodes.Routes(mux)
	s.vclusters.Routes(mux)
	network.Burst(mux, s.burst)
	s.users.Routes(mux)
	s.console.Routes(mux)
	s.metrics.Routes(mux)
	s.history.Routes(mux)
	api.Clock(mux, s.clock)
	return mux
}

func (s *System) peerCheck() peercheck.Here {
	return peercheck.Here{
		Self: s.self, Engine: s.engine, DNS: s.dnsAddr(), Domain: fixed.ClusterDomain, Fabric: &s.fabric, Tunnel: &s.tunnel,
	}
}

// statusTimeout bounds how long a status waits for other components; missing answers are left out.
const statusTimeout = 2 * time.Second

// peering is the state of other clusters, and of offloading; components that have not started are left out.
func (s *System) peering(ctx context.Context) (st api.Status) {
	if tun := s.tunnel.Load(); tun != nil {
		ctx, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		if ts, err := tun.Status(ctx); err == nil {
			st.Tunnel = &ts
		}
	}
	if fab := s.fabric.Load(); fab != nil {
		st.Brokers = fab.Brokers()
		st.Peers, st.Nodes = s.nodes.Split(fab.Peers())
	}
	if off := s.offload.Load(); off != nil {
		st.Status = off.Status()
	}
	return st
}

// Status is the content of `rivulet status`.
func (s *System) Status() api.Status {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	upgrade := s.upgrade.View() // before Health: it reports there
	st := s.peering(ctx)
	st.Upgrade, st.Clock, st.Config, st.Host, st.PIDs, st.Started = upgrade, s.clock.Status(), s.configuration().Status(), s.facts, usage.PIDs(s.cfg.Dirs.Run), s.begun
	st.Name, st.NodeName, st.ID, st.NodeAddress, st.Version = s.name(), s.nodeName, s.id.ID(), s.nodeIP.String(), version.Version
	st.Stages = s.manager.Status()
	st.Ready, st.Waiting = needed.Ready(st.Stages)
	st.ReadyAfter, st.ReadyAfterBoot = needed.Took(st.Stages)
	s.worker.Show(&st)
	st.Addresses, st.StatusPage, st.Console, st.Services, st.DatastoreReady = s.page.Addresses(), s.page.URL(), s.console.URL(), s.opened.Reached(s.page.URL()), s.inOrder.Load()
	st.ClusterSet = s.services.Status()
	if client := s.engine.Client(); client != nil {
		st.Pods, st.Room = places.Count(ctx, client, s.nodeName, st.Consumers)
	}
	st.Health, st.Footprint = s.problems(), s.usage.Report()
	return st
}
