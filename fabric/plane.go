package fabric

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
)

// overhead is what a tunnel packet adds to the packet inside, bytes, with room to spare: IPv6 40, UDP 8, WireGuard 32.
const overhead = 80

// maxRetry bounds, in units of Timing.Retry, the pause before a local failure is retried: a user who has just freed a
// port or loaded a module is waiting.
const maxRetry = 3

// served are the peers that the data plane serves.
type served interface {
	// desired is the wanted configuration.
	desired() tunnel.Config
	// pingAll is called after a change of what the data plane serves, CheckPrefixes before it if there are peers that it
	// does not serve.
	pingAll()
	CheckPrefixes()
}

// plane keeps the data plane's configuration equal to the records. It alone decides whether there is a tunnel to a
// peer: the process runs, has the configuration, and serves that peer.
type plane struct {
	data     DataPlane
	timing   Timing
	log      *slog.Logger
	problems *problems
	served   served

	wanted chan struct{} // the configuration may have changed
	doubts chan struct{} // the data plane may have lost its configuration

	mu      sync.Mutex
	applied *tunnel.Config            // nil if unknown
	pid     int                       // of the configured process
	failed  string                    // why nothing could be applied; empty if it could
	trouble map[string]tunnel.Problem // by peer, of what is applied
}

func (p *plane) kick()  { changes.Poke(p.wanted) }
func (p *plane) doubt() { changes.Poke(p.doubts) }

// tunnel reports whether the tunnel to the peer is in force, or the reason why not, if known. A peer may have both a
// tunnel and trouble.
func (p *plane) tunnel(id peer.ID) (ok bool, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, troubled := p.trouble[string(id)]
	switch {
	case p.applied == nil && p.failed != "":
		return false, "there is no tunnel on this device: " + p.failed
	case p.applied == nil:
		return false, ""
	case troubled:
		return t.Partly, t.Text + "; " + t.Cure
	}
	return slices.ContainsFunc(p.applied.Peers, func(t tunnel.Peer) bool { return t.ID == string(id) }), ""
}

// has is tunnel without the reason.
func (p *plane) has(id peer.ID) bool {
	ok, _ := p.tunnel(id)
	return ok
}

// checkEvery is the interval of checks of peers with trouble, in units of Timing.Ping.
const checkEvery = 2

func (p *plane) run(ctx context.Context) {
	wait := p.timing.Retry
	var retry <-chan time.Time
	var checked time.Time
	for {
		err := p.apply(ctx)
		p.fail(err)
		if err != nil && ctx.Err() == nil {
			p.problems.report("tunnel", &rpc.Error{Code: "tunnel", Message: "no tunnel to any peer: " + err.Error(), Cure: "this cluster itself works; the tunnel is tried again every few seconds"})
			retry = time.After(wait)
			wait = min(2*wait, maxRetry*p.timing.Retry)
		} else {
			p.problems.report("tunnel", nil)
			wait, retry = p.timing.Retry, nil
			if p.troubled() {
				retry = time.After(checkEvery * p.timing.Ping)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wanted:
		case <-retry:
			if err == nil {
				p.check(ctx)
			}
		case <-p.doubts:
			if time.Since(checked) > p.timing.Ping {
				checked = time.Now()
				p.check(ctx)
			}
		}
	}
}

// apply configures the data plane, unless it has this configuration.
func (p *plane) apply(ctx context.Context) error {
	want := p.served.desired()
	p.mu.Lock()
	same := p.applied != nil && reflect.DeepEqual(*p.applied, want)
	p.mu.Unlock()
	if same {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.data.Apply(ctx, want); err != nil {
		return err
	}
	status, err := p.data.Status(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.applied, p.pid = &want, status.PID
	p.mu.Unlock()
	p.took(status)
	p.log.Debug("tunnel configured", "peers", len(want.Peers), "mtu", want.MTU)
	p.served.pingAll()
	return nil
}

// check discards the applied configuration if the data plane's process has been replaced.
func (p *plane) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	status, err := p.data.Status(ctx)
	p.mu.Lock()
	same := err == nil && status.Port != 0 && status.PID == p.pid
	if !same {
		p.applied = nil
	}
	p.mu.Unlock()
	if same {
		p.took(status)
	}
}

// fail records why nothing can be applied; nil is success.
func (p *plane) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed = ""; err != nil {
		p.failed = err.Error()
	}
}

func (p *plane) troubled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.trouble) > 0
}

// took records which peers the data plane does not serve, or only partly. A prefix that has become a network of this
// host is replaced.
func (p *plane) took(status tunnel.Status) {
	trouble := map[string]tunnel.Problem{}
	for _, s := range status.Peers {
		if s.Problem != nil {
			trouble[s.ID] = *s.Problem
		}
	}
	p.mu.Lock()
	news := !maps.Equal(trouble, p.trouble)
	p.trouble = trouble
	p.mu.Unlock()
	if news && len(trouble) > 0 {
		p.served.CheckPrefixes()
	}
	if news {
		p.served.pingAll()
	}
}

// Reapply configures the data plane again after its restart. Without this call the fabric detects the restart when
// pings fail.
func (p *plane) Reapply() {
	p.mu.Lock()
	p.applied = nil
	p.mu.Unlock()
	p.kick()
}

// desired computes the data plane's configuration from the records.
func (f *Fabric) desired() tunnel.Config {
	lans := f.cfg.LANs.LANs()
	mtu := lans.MTU()
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	c := tunnel.Config{
		PrivateKey: f.keys.Now().Private, Port: f.cfg.TunnelPort, Interface: f.cfg.Interface, Leased: f.cfg.Leased,
		MTU: min(max(mtu, 1360), 9000) - overhead, Address: f.cfg.TunnelAddress, ControlPort: f.cfg.Port, PodCIDR: f.cfg.PodCIDR,
	}
	c.Peers = f.gateways.tunnelPeers() // before peers
	var peers []*member
	for _, m := range f.peers() {
		if m.Record().Complete() {
			peers = append(peers, m)
		}
	}
	slices.SortFunc(peers, func(a, b *member) int { return peer.ByTrust(a.Record(), b.Record()) }) // the first is served
	for _, m := range peers {
		r := m.Record()
		address, _ := r.Address()
		p := tunnel.Peer{ID: string(r.ID), PublicKey: m.Key(), Endpoint: peering.Specified(r.Tunnel), LocalMappedCIDR: r.LocalMappedCIDR, PeerMappedCIDR: r.PeerMappedCIDR, Address: address.Addr()}
		if r.Trust.Node() && len(r.Behind) > 0 {
			p.Behind, c.Node, c.Nodes = r.Behind, f.cfg.Node, f.cfg.Nodes
		}
		c.Peers = append(c.Peers, p)
	}
	f.addPaths(&c, lans)
	return c
}
