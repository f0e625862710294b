package fabric

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/control"
	"rivulet/fabric/gatewaypeers"
	"rivulet/fabric/keyring"
	"rivulet/fabric/lanpeers"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
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
	f.problems = &problems{log: log, notify: s.changed.Notify, open: map[string]rpc.Error{}}
	f.prefixes = &prefixes{
		pods: cfg.PodCIDR, services: cfg.ServiceCIDR, block: f.settings.block.get, lans: cfg.LANs, host: cfg.TakenPrefixes,
		gateways: func(but peer.ID) []netip.Prefix { return f.Registry.PrefixesBut(but) },
		records:  s.records, store: cfg.Store, renegotiate: s.due, log: log,
	}
	f.plane = &plane{
		data: cfg.DataPlane, timing: cfg.Timing, log: log, desired: f.desired, problem: f.report, inForce: s.pingAll, unserved: f.CheckPrefixes,
		wanted: make(chan struct{}, 1), doubts: make(chan struct{}, 1),
	}
	f.Registry = gatewaypeers.New(gatewaypeers.Config{
		PodCIDR: cfg.PodCIDR, Choose: f.choose, Key: func() wgkey.Public { return f.keys.Now().Public },
		Addresses: func() (udp, streams []netip.AddrPort) {
			lans := cfg.LANs.LANs()
			return candidates(lans, cfg.TunnelPort), candidates(lans, cfg.Port)
		},
		Status: cfg.DataPlane.Status, HandOver: func(conn net.Conn) error { return f.takeOver(conn, nil) },
		Changed: func() { f.plane.kick(); s.changed.Notify() },
	})
	f.clients = &clients{identity: cfg.Identity, address: cfg.TunnelAddress, dial: cfg.Dial, members: s}
	f.pinger = &pinger{identity: cfg.Identity, clients: f.clients, members: s, plane: f.plane, clock: cfg.Clock, timing: cfg.Timing, log: log}
	f.paths = &pathView{data: cfg.DataPlane, members: s, problem: f.report, retry: cfg.Timing.Retry, viewed: make(chan struct{}, 1), log: log}
	f.admission = &admission{
		settings: f.settings, decisions: f.decisions, members: s, lan: lanpeers.New(cfg.LANPeers, cfg.InUse), onLink: cfg.OnLink, hardware: cfg.Hardware, log: log,
		displace: func(ctx context.Context, id peer.ID) error {
			_, err := f.unpeer(ctx, id, Unpeer{Force: true, Forget: true})
			return err
		},
	}
	f.wireExchange()
	s.plane, s.source, s.pair, s.ping = f.plane, f.admission.source, f.exchanger.loop, f.pinger.loop
}

// wireExchange creates the parts that exchange messages with other clusters, and the control port.
func (f *Fabric) wireExchange() {
	cfg, log := f.cfg, f.log
	claims := &keyring.Claims{Name: f.settings.name.get, Owner: f.keyOwner, Save: f.save, Refused: f.refusedKey, Log: log}
	f.party = &pairing.Party{
		Self: f.self, Record: f.record, Save: f.save, Choose: f.choose, Admit: f.admission.admit, Join: f.admission.join, Claim: claims.Claim, Keys: f.keys.Private, Group: f.settings.group,
		Invite: func(id peer.ID) ([]byte, bool) { return f.invitedBy(id) },
		Parted: func(id peer.ID) (heard, skip uint64) { p, _ := f.decisions.Revocation(id); return p.Heard, p.Skip },
		Epoch:  f.decisions.Epoch(), Now: time.Now,
	}
	f.endings = &endings{
		identity: cfg.Identity, decisions: f.decisions, members: f.members, party: f.party, plane: f.plane, clients: f.clients, admission: f.admission, log: log,
	}
	f.operator = &operator{
		identity: cfg.Identity, port: cfg.Port, patience: cfg.Timing.Decision, addresses: cfg.Addresses, settings: f.settings, decisions: f.decisions,
		members: f.members, party: f.party, endings: f.endings, log: log, invites: map[peer.ID]received{},
	}
	f.exchanger = &exchanger{
		identity: cfg.Identity, port: cfg.Port, lans: cfg.LANs, forget: cfg.Timing.Forget, settings: f.settings, decisions: f.decisions, keys: f.keys,
		members: f.members, admission: f.admission, endings: f.endings, party: f.party, plane: f.plane, clients: f.clients, log: log,
		slots: make(chan struct{}, maxExchanges), strangers: make(chan struct{}, maxStrangersExchanges),
	}
	f.introducer = &introducer{
		self: cfg.Identity.ID, settings: f.settings, members: f.members, clients: f.clients, discovered: f.exchanger.discovered, retry: cfg.Timing.Retry, log: log,
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

// self is this cluster's part of a message.
func (f *Fabric) self() pairing.Self {
	c := f.cfg
	keys := f.keys.Now()
	return pairing.Self{
		ID: c.Identity.ID, Name: f.settings.name.get(), Version: c.Version, KubeVersion: c.KubeVersion(), WireGuardKey: keys.Public, NextWireGuardKey: keys.NextPublic,
		TunnelPort: c.TunnelPort, ControlPort: c.Port, TunnelAddress: c.TunnelAddress, PodCIDR: c.PodCIDR, ServiceCIDR: c.ServiceCIDR,
	}
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
