package fabric

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/tunnel/paths"
)

// member is a known cluster, a peer or not yet: its Machine and its goroutines. Fabric.mu guards all of it but the
// channels.
type member struct {
	*peering.Machine
	paths    []paths.PathStatus // the last report of the data plane; the one in use first
	paceKick chan struct{}
	pingKick chan struct{}
	stop     context.CancelFunc // nil before Run
	client   *http.Client       // to the peer's control address in the tunnel
	// served is the context of the peer's requests: it ends with the peering.
	served    context.Context
	endServed context.CancelFunc
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// The functions below but record and save are called with mu held.

// do carries out the effects of an event.
func (f *Fabric) do(m *member, e peering.Effects) {
	if e&peering.Entered != 0 {
		f.log.Info("peer", "state", m.State(), "peer", m.Title(), "id", m.ID().Short(), "reason", m.Reason())
	}
	if e&peering.Changed != 0 {
		f.notify()
	}
	if e&peering.Configure != 0 {
		f.plane.kick()
	}
	if e&peering.Doubt != 0 {
		f.plane.doubt()
	}
	if e&peering.Exchange != 0 {
		changes.Poke(m.paceKick)
	}
	if e&peering.Ping != 0 {
		changes.Poke(m.pingKick)
	}
}

// pin makes the member a peer, or replaces its record.
func (f *Fabric) pin(m *member, r peer.Record) {
	first, effects := m.Pin(time.Now(), r)
	if first {
		f.log.Info("new peer", "peer", r.Name, "id", r.ID.Short(), "trust", r.Trust.How, "addr", r.Control)
	}
	m.serve()
	f.do(m, effects)
}

// serve begins the context of the peer's requests.
func (m *member) serve() {
	if m.served == nil {
		m.served, m.endServed = context.WithCancel(context.Background())
	}
}

// unpin makes it a stranger, and ends its requests.
func (m *member) unpin() {
	m.Unpin()
	if m.served == nil {
		return
	}
	m.endServed()
	m.served = nil
	if m.client != nil {
		m.client.CloseIdleConnections()
		m.client = nil
	}
}

// load adds a stored record, before Run.
func (f *Fabric) load(r peer.Record) {
	if r.LocalMappedCIDR.IsValid() && r.LocalMappedCIDR.Bits() != f.cfg.PodCIDR.Bits() {
		r.LocalMappedCIDR = netip.Prefix{} // the pod CIDR has another size now: the peer has to choose again
	}
	m := f.member(string(r.ID), r.ID)
	m.serve()
	f.do(m, m.Loaded(time.Now(), r, f.first(r.ID)))
	f.names()
}

// member returns the member with the key, a new one if there is none.
func (f *Fabric) member(key string, id peer.ID) *member {
	m := f.members[key]
	if m == nil {
		t := f.cfg.Timing
		m = &member{
			Machine:  peering.New(id, time.Now(), peering.Timing{Ping: t.Ping, Probe: t.Probe, PingTimeout: t.PingTimeout, Misses: t.Misses}),
			paceKick: make(chan struct{}, 1), pingKick: make(chan struct{}, 1),
		}
		f.members[key] = m
		if f.run != nil {
			f.start(key, m)
		}
	}
	return m
}

// start runs the member's loops.
func (f *Fabric) start(key string, m *member) {
	var ctx context.Context
	ctx, m.stop = context.WithCancel(f.run)
	f.loops.Go(func() { f.pairLoop(ctx, key, m) })
	if m.ID() != "" {
		f.loops.Go(func() { f.pingLoop(ctx, m) })
	}
}

// forget removes a member that is not needed.
func (f *Fabric) forget(key string) {
	if m := f.members[key]; m != nil && m.Forgettable() {
		delete(f.members, key)
		if m.stop != nil {
			m.stop()
		}
		f.notify()
	}
}

// first reports whether this side begins exchanges with the cluster.
func (f *Fabric) first(id peer.ID) bool { return f.cfg.Identity.ID < id }

// names updates which names are not unique.
func (f *Fabric) names() {
	for _, m := range f.members {
		if !m.Pinned() {
			continue
		}
		name, id := m.Record().Name, m.ID()
		other := f.namesake(name, id)
		if other == "" && strings.EqualFold(name, f.settings.name.get()) {
			other = f.cfg.Identity.ID
		}
		notice := ""
		if other != "" {
			notice = fmt.Sprintf("a second cluster is called %q (IDs %s and %s; they are different clusters): give one of them another name (name: in its configuration, or rivulet run --name, or RIVULET_NAME)", name, id.Short(), other.Short())
		}
		effects := m.Notice(notice)
		if effects != 0 && notice != "" {
			f.log.Warn(notice)
		}
		f.do(m, effects)
	}
}

// record and save are the exchange's access to the store; they take mu themselves.

func (f *Fabric) record(id peer.ID) (peer.Record, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[string(id)]; m != nil {
		return m.Record(), m.Pinned()
	}
	return peer.Record{}, false
}

func (f *Fabric) save(r peer.Record) error {
	if r.Trust.How == peer.TrustLAN && r.Trust.Source == "" {
		r.Trust.Source = f.source(r.Control.Addr())
	}
	// With both a record and a revocation, the record would be removed: so the revocation is removed first.
	if err := f.decisions.Rejoin(r.ID); err != nil {
		return err
	}
	if err := f.cfg.Store.PutPeer(r); err != nil {
		return err
	}
	if err := f.decisions.Met(r.ID); err != nil {
		f.log.Warn("a decision that was carried out stays stored", "peer", r.Name, "err", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pin(f.member(string(r.ID), r.ID), r)
	f.names()
	return nil
}
