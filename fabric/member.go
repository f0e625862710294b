package fabric

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
)

// member is a cluster we know of, a peer or not yet. Fabric.mu guards all of it
// but the channels.
type member struct {
	id      peer.ID // empty while only an address is known
	pinned  bool
	rec     peer.Record    // zero if not pinned
	name    string         // as last claimed, if not pinned
	knocked netip.AddrPort // where one came from who was refused
	proved  bool           // has shown by TLS that its ID is its own
	began   time.Time      // when it was first heard of
	found   map[string]discovery.Entry

	state    peer.State
	reason   string
	notice   string           // does not keep the peer from working
	refusal  error            // of the last exchange, nil if it went well
	told     wgkey.Public     // our next WireGuard key, as the peer has taken it in
	tryNext  bool             // its present key has ceased to answer
	tries    int              // attempts that have ended
	said     []netip.AddrPort // where a person, or an invite, says it is
	held     bool             // a person has said yes: it is not forgotten in this run
	mine     bool             // the refusal is ours, not the other side's
	since    time.Time
	lastSeen time.Time
	rtt      time.Duration
	misses   int
	// unplugged is since when this device has no tunnel to it; zero while it has one.
	unplugged time.Time
	here      bool               // reason is about this device's tunnel
	paths     []paths.PathStatus // as the data plane last told; the one in use first

	pace       pairing.Pace
	backoff    pairing.Pace // of the attempt that is on
	attempting bool
	exchanged  time.Time // last success in this run
	paceKick   chan struct{}
	pingKick   chan struct{}
	stop       context.CancelFunc // nil before Run
	displaced  bool               // another takes its place: it is about to be a peer no more
	client     *http.Client       // to the peer's control address in the tunnel
	// served is the life of what it asks of us: it ends when it is a peer no more.
	served    context.Context
	endServed context.CancelFunc
}

func (m *member) view() peer.View {
	v := peer.View{Record: m.rec, State: m.state, Reason: m.reason, RTT: m.rtt, Since: m.since, LastSeen: m.lastSeen}
	if v.Reason == "" {
		v.Reason = m.notice
	}
	v.Found, v.Addrs = m.sources(), m.addrs()
	if !m.pinned {
		v.Record = peer.Record{ID: m.id, Name: m.title()}
		if addrs := m.addrs(); len(addrs) > 0 {
			v.Control = addrs[0]
		} else {
			v.Control = m.knocked
		}
	}
	v.Control, v.Tunnel = somewhere(v.Control), somewhere(v.Tunnel)
	return v
}

func (m *member) link() (peer.Link, bool) {
	addr, ok := m.rec.Address()
	if !m.pinned || !ok {
		return peer.Link{}, false
	}
	return peer.Link{ID: m.id, Name: m.rec.Name, Addr: addr, PeerCIDR: m.rec.PeerCIDR, PeerMappedCIDR: m.rec.PeerMappedCIDR, LocalMappedCIDR: m.rec.LocalMappedCIDR, State: m.state, RTT: m.rtt,
		Trust: m.rec.Trust.How, NoBorrow: m.rec.NoBorrow(), NoLend: m.rec.NoLend()}, true
}

// title is the best name there is.
func (m *member) title() string {
	if m.pinned {
		return m.rec.Name
	}
	for _, e := range m.found {
		if e.Name != "" {
			return e.Name
		}
	}
	if m.name == "" && m.id == "" {
		for _, a := range m.addrs() {
			return a.String()
		}
	}
	return m.name
}

// addrs are the control addresses to try: what discovery says now, then what worked last.
func (m *member) addrs() []netip.AddrPort {
	var out []netip.AddrPort
	for _, key := range sortedKeys(m.found) {
		for _, a := range m.found[key].Addrs {
			if !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	for _, a := range append([]netip.AddrPort{m.rec.Control, m.knocked}, m.said...) {
		if a.IsValid() && !a.Addr().IsUnspecified() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func sortedKeys[T any](m map[string]T) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// The functions below are called with mu held.

// pin makes the member a peer, or gives it another record.
func (m *member) pin(r peer.Record) {
	if r.WireGuardKey != m.rec.WireGuardKey {
		m.tryNext = false
	}
	m.rec = r
	if !m.pinned {
		m.pinned = true
		m.served, m.endServed = context.WithCancel(context.Background())
	}
}

// unpin makes it a peer no more: what it asks for ends now.
func (m *member) unpin() {
	if !m.pinned {
		return
	}
	m.name, m.pinned, m.rec, m.notice, m.rtt, m.misses, m.displaced = m.rec.Name, false, peer.Record{}, "", 0, 0, false
	m.unplugged = time.Time{}
	m.endServed()
	if m.client != nil {
		m.client.CloseIdleConnections()
		m.client = nil
	}
}

// handle is what a person calls it on the command line.
func (m *member) handle() string {
	if t := m.title(); t != "" {
		return t
	}
	return m.id.Short()
}

// load takes a record out of the store, before Run.
func (f *Fabric) load(r peer.Record) {
	if r.LocalMappedCIDR.IsValid() && r.LocalMappedCIDR.Bits() != f.cfg.PodCIDR.Bits() {
		r.LocalMappedCIDR = netip.Prefix{} // our pod CIDR is of another size now: the peer has to choose anew
	}
	m := f.member(string(r.ID), r.ID)
	m.pin(r)
	f.set(m, peer.Connecting, m.keyless())
	f.due(m, f.starts(r.ID))
	f.names()
}

// member returns the member with the key, made if there is none.
func (f *Fabric) member(key string, id peer.ID) *member {
	m := f.members[key]
	if m == nil {
		m = &member{
			id: id, found: map[string]discovery.Entry{}, state: peer.Discovered, since: time.Now(), began: time.Now(),
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
	if m.id != "" {
		f.loops.Go(func() { f.pingLoop(ctx, m) })
	}
}

// forget drops a member that is no peer.
func (f *Fabric) forget(key string) {
	if m := f.members[key]; m != nil && !m.pinned && !m.held {
		delete(f.members, key)
		if m.stop != nil {
			m.stop()
		}
		f.notify()
	}
}

// starts reports whether we go first when both sides see each other.
func (f *Fabric) starts(id peer.ID) bool { return f.cfg.Identity.ID < id }

// due makes an exchange due: at once, or after the grace that the other side has.
func (f *Fabric) due(m *member, now bool) {
	m.pace.Found(time.Now(), now)
	poke(m.paceKick)
}

// set moves the member to a state and says so if that is news.
func (f *Fabric) set(m *member, s peer.State, reason string) {
	if m.state == s && m.reason == reason {
		return
	}
	if m.state != s {
		m.state, m.since = s, time.Now()
		f.log.Info("peer", "state", s, "peer", m.title(), "id", m.id.Short(), "reason", reason)
	}
	m.reason = reason
	f.notify()
}

// names notes which names are not unique.
func (f *Fabric) names() {
	for _, m := range f.members {
		if !m.pinned {
			continue
		}
		var other peer.ID
		if strings.EqualFold(m.rec.Name, f.name()) {
			other = f.cfg.Identity.ID
		}
		for _, o := range f.members {
			if o != m && o.pinned && strings.EqualFold(o.rec.Name, m.rec.Name) {
				other = o.id
			}
		}
		notice := ""
		if other != "" {
			notice = fmt.Sprintf("a second cluster is called %q (IDs %s and %s; they are different clusters): give one of them another name (name: in its configuration, or rivulet run --name, or RIVULET_NAME)", m.rec.Name, m.id.Short(), other.Short())
		}
		if notice != m.notice {
			m.notice = notice
			if notice != "" {
				f.log.Warn(notice)
			}
			f.notify()
		}
	}
}

// record and save are the pairing's view of the store; they take mu themselves.

func (f *Fabric) record(id peer.ID) (peer.Record, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[string(id)]; m != nil && m.pinned {
		return m.rec, true
	}
	return peer.Record{}, false
}

func (f *Fabric) save(r peer.Record) error {
	if r.Trust.How == peer.TrustLAN && r.Trust.Source == "" {
		r.Trust.Source = f.source(r.Control.Addr())
	}
	// A parting beside a record means that the record is to go: first this one goes.
	if err := f.decisions.Rejoin(r.ID); err != nil {
		return err
	}
	if err := f.cfg.Store.PutPeer(r); err != nil {
		return err
	}
	if err := f.decisions.Met(r.ID); err != nil {
		f.log.Warn("a word that was kept stays in the book", "peer", r.Name, "err", err)
	}
	f.mu.Lock()
	m := f.member(string(r.ID), r.ID)
	if !m.pinned {
		f.log.Info("new peer", "peer", r.Name, "id", r.ID.Short(), "trust", r.Trust.How, "addr", r.Control)
	}
	m.pin(r)
	if m.state.Apart() {
		f.set(m, peer.Connecting, "")
	}
	f.names()
	f.notify()
	f.mu.Unlock()
	f.plane.kick()
	return nil
}
