package fabric

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/control"
	"rivulet/fabric/lanpeers"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/wgkey"
)

// wire creates the parts. Nothing runs yet.
func (f *Fabric) wire() {
	cfg, log := f.cfg, f.log
	s := &members{
		self: cfg.Identity.ID, podBits: cfg.PodCIDR.Bits(), timing: cfg.Timing, settings: f.settings, store: cfg.Store, decisions: f.decisions,
		log: log, all: map[string]*member{}, known: map[string]string{}, missed: missed{},
	}
	f.members = s
	f.problems = &problems{log: log, changed: &s.changed, open: map[string]rpc.Error{}}
	f.plane = &plane{
		data: cfg.DataPlane, timing: cfg.Timing, log: log, problems: f.problems, served: f,
		wanted: make(chan struct{}, 1), doubts: make(chan struct{}, 1),
	}
	f.prefixes = &prefixes{
		pods: cfg.PodCIDR, services: cfg.ServiceCIDR, settings: f.settings, lans: cfg.LANs, host: cfg.TakenPrefixes, members: s, store: cfg.Store, log: log,
	}
	f.gateways = &gateways{
		pods: cfg.PodCIDR, port: cfg.Port, tunnelPort: cfg.TunnelPort, lans: cfg.LANs, data: cfg.DataPlane, keys: f.keys, prefixes: f.prefixes, plane: f.plane,
		members: s, byName: map[string]tunnel.Peer{},
	}
	f.prefixes.gateways = f.gateways
	f.clients = &clients{identity: cfg.Identity, address: cfg.TunnelAddress, dial: cfg.Dial, members: s}
	f.pinger = &pinger{identity: cfg.Identity, clients: f.clients, members: s, plane: f.plane, clock: cfg.Clock, timing: cfg.Timing, log: log}
	f.paths = &pathView{data: cfg.DataPlane, members: s, problems: f.problems, retry: cfg.Timing.Retry, viewed: make(chan struct{}, 1), log: log}
	f.admission = &admission{
		base: pairing.Self{
			ID: cfg.Identity.ID, Version: cfg.Version, TunnelPort: cfg.TunnelPort, ControlPort: cfg.Port, TunnelAddress: cfg.TunnelAddress,
			PodCIDR: cfg.PodCIDR, ServiceCIDR: cfg.ServiceCIDR,
		},
		kube: cfg.KubeVersion, settings: f.settings, decisions: f.decisions, keys: f.keys, members: s, prefixes: f.prefixes, gateways: f.gateways,
		lan: lanpeers.New(cfg.LANPeers, cfg.InUse), onLink: cfg.OnLink, hardware: cfg.Hardware, log: log, invites: map[peer.ID]received{},
	}
	f.wireExchange()
	f.admission.endings = f.endings
	s.plane, s.admission, s.exchanger, s.pinger = f.plane, f.admission, f.exchanger, f.pinger
}

// wireExchange creates the parts that exchange messages with other clusters, and the control port.
func (f *Fabric) wireExchange() {
	cfg, log := f.cfg, f.log
	f.party = &pairing.Party{Cluster: f.admission, Epoch: f.decisions.Epoch(), Now: time.Now}
	f.endings = &endings{
		identity: cfg.Identity, decisions: f.decisions, members: f.members, party: f.party, plane: f.plane, clients: f.clients, admission: f.admission, log: log,
	}
	f.operator = &operator{
		identity: cfg.Identity, port: cfg.Port, patience: cfg.Timing.Decision, addresses: cfg.Addresses, settings: f.settings, decisions: f.decisions,
		members: f.members, party: f.party, endings: f.endings, admission: f.admission, log: log,
	}
	f.exchanger = &exchanger{
		identity: cfg.Identity, port: cfg.Port, lans: cfg.LANs, forget: cfg.Timing.Forget, settings: f.settings, decisions: f.decisions, keys: f.keys,
		members: f.members, admission: f.admission, endings: f.endings, party: f.party, plane: f.plane, clients: f.clients, log: log,
		slots: make(chan struct{}, maxExchanges), strangers: make(chan struct{}, maxStrangersExchanges),
	}
	f.introducer = &introducer{
		self: cfg.Identity.ID, settings: f.settings, members: f.members, clients: f.clients, exchanger: f.exchanger, retry: cfg.Timing.Retry, log: log,
	}
	f.openPort()
	f.brokers = broker.NewClient(broker.ClientConfig{
		Self: cfg.Identity, Key: func() wgkey.Private { return f.keys.Now().Private },
		Room: func(at peer.ID) string {
			if key := f.settings.group(); key != nil {
				return key.Room(at)
			}
			return ""
		},
		Addrs:      func() []netip.AddrPort { return candidates(cfg.LANs.LANs(), cfg.Port) },
		Discovered: f.exchanger.discovered, Arrived: f.relay.Arrive, Changed: f.plane.kick,
		Problem: func(e *rpc.Error) { f.report("broker", e) }, Notes: cfg.Notes, Retry: cfg.Timing.Retry, Log: log,
	}, cfg.Brokers)
	f.exchanger.relay, f.exchanger.brokers, f.paths.brokers = f.relay, f.brokers, f.brokers
}

// openPort creates the control port, its routes and the relay.
func (f *Fabric) openPort() {
	exchanges := f.exchanges()
	f.Port = control.New(control.Config{
		Identity: f.cfg.Identity, Port: f.cfg.Port, TunnelAddress: f.cfg.TunnelAddress, Name: f.settings.name.get, Peers: f, Exchange: exchanges,
		Streams: f.handOver(), Problem: f.report, Retry: f.cfg.Timing.Retry, LongestRetry: maxRetry * f.cfg.Timing.Retry, Log: f.log,
	})
	f.relay = relay.New(relay.Config{
		Identity: f.cfg.Identity, Name: f.settings.name.get, Address: netip.AddrPortFrom(f.cfg.TunnelAddress, f.cfg.Port), Allowed: f.settings.relays.get, Reaches: f.connected,
		Dial: func(ctx context.Context, id peer.ID) (net.Conn, error) {
			return f.dialPeer(id, dialLimit)(ctx, "tcp", "")
		},
		Exchange: exchanges, Log: f.log,
	}, f.Port)
	f.Handle("GET /v1/ping", http.HandlerFunc(f.pinger.answer))
	f.Handle("GET "+neighboursPath, http.HandlerFunc(f.introducer.report))
	f.Handle("POST "+pairing.Path, exchanges)
	f.Handle("POST "+pairing.EndPath, exchanges)
}

// exchanges serves the exchange and its end. It refuses all requests while this cluster leaves.
func (f *Fabric) exchanges() http.Handler {
	mux := http.NewServeMux()
	inside := func(r *http.Request) bool { return control.Inside(r, f.cfg.TunnelAddress) }
	mux.Handle("POST "+pairing.Path, f.admission.polling(f.party.Handler(inside, f.exchanger.received)))
	mux.Handle("POST "+pairing.EndPath, f.party.EndHandler(f.endings.endedByThem))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			control.NotServed(w, r)
		} else if f.admission.leaving.Load() {
			rpc.Fail(w, http.StatusServiceUnavailable, leavingError(f.settings.name.get()))
		} else {
			mux.ServeHTTP(w, r)
		}
	})
}
