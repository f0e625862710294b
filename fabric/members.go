package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/trust"
	"rivulet/fabric/tunnel/paths"
)

// member is a known cluster, a peer or not yet: its Machine and its goroutines. members.mu guards all of it but the
// channels.
type member struct {
	*peering.Machine
	paths    []paths.PathStatus // the last report of the data plane; the one in use first
	works    bool               // the tunnel's own pings show that the path to it works
	pings    peering.Pings
	paceKick chan struct{}
	pingKick chan struct{}
	stop     context.CancelFunc // nil before Run
	client   *http.Client       // to the peer's control address in the tunnel
	conns    conns              // of client
	from     string             // the machine of its last refused request
	// served is the context of the peer's requests: it ends with the peering.
	served    context.Context
	endServed context.CancelFunc
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

// members are the known clusters. It alone writes the peers' records while the fabric runs. The types of this package
// that change several facts of a member at once hold mu meanwhile; the leaf locks (settings, keys, gateways, problems,
// plane) may be taken with it held.
type members struct {
	self      peer.ID
	podBits   int // the length of this cluster's pod CIDR
	timing    Timing
	settings  *settings
	plane     *plane
	store     peer.Store
	decisions *trust.Store
	admission *admission // says what counts as one machine
	exchanger *exchanger // has one loop of each member,
	pinger    *pinger    // and this the other
	log       *slog.Logger
	changed   changes.Signal

	mu    sync.Mutex
	run   context.Context // of Run; nil before and after
	loops sync.WaitGroup  // one member has several
	all   map[string]*member
	known map[string]string // discovery entry to key in all, where the entry has no ID
	// missed are discovery entries, by source and key, of strangers for which there was no room.
	missed missed
}

// The functions of this part are called with mu held.

func (s *members) byID(id peer.ID) *member { return s.all[string(id)] }

// sorted are all members, by key.
func (s *members) sorted() (out []*member) {
	for _, key := range slices.Sorted(maps.Keys(s.all)) {
		out = append(out, s.all[key])
	}
	return out
}

// peers are the members that are peers, in no order.
func (s *members) peers() (out []*member) {
	for _, m := range s.all {
		if m.Pinned() {
			out = append(out, m)
		}
	}
	return out
}

// do carries out the effects of an event.
func (s *members) do(m *member, e peering.Effects) {
	if e&peering.Entered != 0 {
		if m.State() == peer.Lost {
			time.AfterFunc(lostConns, func() { s.abandon(m) })
		}
		s.log.Info("peer", "state", m.State(), "peer", m.Title(), "id", m.ID().Short(), "reason", m.Reason())
	}
	if e&peering.Changed != 0 {
		s.changed.Notify()
	}
	if e&peering.Configure != 0 {
		s.plane.kick()
	}
	if e&peering.Doubt != 0 {
		s.plane.doubt()
	}
	if e&peering.Exchange != 0 {
		changes.Poke(m.paceKick)
	}
	if e&peering.Ping != 0 {
		m.pings.Needed()
		changes.Poke(m.pingKick)
	}
}

// pin makes the member a peer, or replaces its record.
func (s *members) pin(m *member, r peer.Record) {
	was := m.Record().Trust.How
	first, effects := m.Pin(time.Now(), r)
	if first {
		s.log.Info("new peer", "peer", r.Name, "id", r.ID.Short(), "trust", r.Trust.How, "addr", r.Control)
	} else if was != r.Trust.How {
		s.log.Info("a peer is trusted by something else", "peer", r.Name, "id", r.ID.Short(), "trust", r.Trust.How, "before", was)
	}
	m.serve()
	s.do(m, effects)
}

// load adds a stored record, before Run.
func (s *members) load(r peer.Record) {
	if r.LocalMappedCIDR.IsValid() && r.LocalMappedCIDR.Bits() != s.podBits {
		r.LocalMappedCIDR = netip.Prefix{} // the pod CIDR has another size now: the peer has to choose again
	}
	m := s.member(string(r.ID), r.ID)
	m.serve()
	s.do(m, m.Loaded(time.Now(), r, s.first(r.ID)))
	s.names()
}

// member returns the member with the key, a new one if there is none.
func (s *members) member(key string, id peer.ID) *member {
	m := s.all[key]
	if m == nil {
		t := s.timing
		m = &member{
			Machine:  peering.New(id, time.Now(), peering.Timing{Ping: t.Ping, Probe: t.Probe, PingTimeout: t.PingTimeout, Confirm: t.Confirm, Misses: t.Misses}),
			pings:    peering.NewPings(t.Ping),
			paceKick: make(chan struct{}, 1), pingKick: make(chan struct{}, 1),
		}
		s.all[key] = m
		if s.run != nil {
			s.start(key, m)
		}
	}
	return m
}

// start runs the member's loops.
func (s *members) start(key string, m *member) {
	var ctx context.Context
	ctx, m.stop = context.WithCancel(s.run)
	s.loops.Go(func() { s.exchanger.loop(ctx, key, m) })
	if m.ID() != "" {
		s.loops.Go(func() { s.pinger.loop(ctx, m) })
	}
}

// forget removes a member that is not needed; another one may have its key by now.
func (s *members) forget(key string, m *member) {
	if s.all[key] == m && m.Forgettable() {
		delete(s.all, key)
		if m.stop != nil {
			m.stop()
		}
		s.changed.Notify()
	}
}

// first reports whether this side begins exchanges with the cluster.
func (s *members) first(id peer.ID) bool { return s.self < id }

// namesake is another peer with the name.
func (s *members) namesake(name string, id peer.ID) peer.ID {
	for _, m := range s.sorted() {
		if m.Pinned() && !m.Record().Trust.Node() && m.ID() != id && strings.EqualFold(m.Record().Name, name) {
			return m.ID()
		}
	}
	return ""
}

// names updates which names are not unique.
func (s *members) names() {
	for _, m := range s.peers() {
		if m.Record().Trust.Node() {
			continue // it has this cluster's name, or its own
		}
		name, id := m.Record().Name, m.ID()
		other := s.namesake(name, id)
		if other == "" && strings.EqualFold(name, s.settings.name.get()) {
			other = s.self
		}
		notice := ""
		if other != "" {
			notice = fmt.Sprintf("a second cluster is called %q (IDs %s and %s; they are different clusters): give one of them another name (name: in its configuration, or rivulet run --name, or RIVULET_NAME)", name, id.Short(), other.Short())
		}
		effects := m.Notice(notice)
		if effects != 0 && notice != "" {
			s.log.Warn(notice)
		}
		s.do(m, effects)
	}
}

// find returns the member that the target names, or nil. A peer is also found by the address at which it proved itself
// last. An address that is only claimed identifies nobody.
func (s *members) find(target string) (*member, error) {
	names := func(m *member) (peer.ID, []string) {
		names := []string{m.Title()}
		if at := peering.Specified(m.Record().Control); at.IsValid() {
			names = append(names, at.String(), at.Addr().String())
		}
		return m.ID(), names
	}
	all := s.sorted()
	found := peer.Meant(all, target, names)
	switch len(found) {
	case 0:
		return nil, nil
	case 1:
		return found[0], nil
	}
	return nil, ambiguous(target, peer.Distinct(found, all, names))
}

// ambiguousError is for a word that means several clusters.
type ambiguousError string

func (e ambiguousError) Error() string { return string(e) }

// ambiguous returns an ambiguousError; ids tell the clusters apart.
func ambiguous(target string, ids []string) error {
	return ambiguousError(fmt.Sprintf("%d clusters are meant by %q; say which one by its ID: %s", len(ids), target, strings.Join(ids, ", ")))
}

// denied are the denied clusters that are not visible now. It is called with mu held.
func (s *members) denied(partings []trust.Revocation) (out []peer.View) {
	for _, p := range partings {
		if p.Denied && s.byID(p.ID) == nil {
			out = append(out, peer.View{Record: peer.Record{ID: p.ID, Name: p.Name}, State: peer.Denied, Reason: deniedReason(p), Since: p.At})
		}
	}
	return out
}

// The functions below take mu themselves.

// begin runs the loops of all members, now and from here on, until ctx ends; end waits for them.
func (s *members) begin(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = ctx
	for key, m := range s.all {
		s.start(key, m)
	}
}

func (s *members) end() {
	s.mu.Lock()
	s.run = nil // no new loops
	s.mu.Unlock()
	s.loops.Wait()
}

// records are those of all peers, by ID.
func (s *members) records() (out []peer.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sorted() {
		if m.Pinned() {
			out = append(out, m.Record())
		}
	}
	return out
}

// record is the record of the peer, false if the cluster is none.
func (s *members) record(id peer.ID) (peer.Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.byID(id); m != nil {
		return m.Record(), m.Pinned()
	}
	return peer.Record{}, false
}

// save stores the record, and makes the cluster a peer.
func (s *members) save(r peer.Record) error {
	if r.Trust.How == peer.TrustLAN && r.Trust.Source == "" {
		r.Trust.Source = s.admission.source(r.Control.Addr())
	}
	// With both a record and a revocation, the record would be removed: so the revocation is removed first.
	was, revoked := s.decisions.Revocation(r.ID)
	if err := s.decisions.Rejoin(r.ID); err != nil {
		return err
	}
	if err := s.store.PutPeer(r); err != nil {
		if revoked {
			err = errors.Join(err, s.decisions.Restore(was))
		}
		return err
	}
	if err := s.decisions.Met(r.ID); err != nil {
		s.log.Warn("a decision that was carried out stays stored", "peer", r.Name, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pin(s.member(string(r.ID), r.ID), r)
	s.names()
	return nil
}

// pinned is the ID of the peer that the target names.
func (s *members) pinned(target string) (peer.ID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.find(target)
	if err != nil {
		return "", err
	}
	if m == nil || !m.Pinned() {
		return "", noPeer(target)
	}
	return m.ID(), nil
}

func noPeer(target string) error {
	return fmt.Errorf("no peer is known as %q; see: rivulet peers", target)
}

// connected reports whether the cluster is a peer that answers.
func (s *members) connected(id peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.byID(id)
	return m != nil && m.State() == peer.Connected
}

// real reports whether there is more evidence of a cluster than an announcement.
func (s *members) real(id peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.byID(id)
	return m != nil && (m.Pinned() || m.Proved())
}

// Refresh sends this cluster's current state to all peers. The caller notices a change, such as the Kubernetes version
// once the API server is up.
func (s *members) Refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.peers() {
		s.do(m, m.Due(time.Now(), true))
	}
}

// due makes an exchange with the peer due at once.
func (s *members) due(id peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.byID(id); m != nil && m.Pinned() {
		s.do(m, m.Due(time.Now(), true))
	}
}

// lostConns is how long connections to a lost peer stay open: TCP would try them again long after the peer is back.
const lostConns = 5 * time.Second

// abandon closes the connections to a peer that is still lost.
func (s *members) abandon(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.State() == peer.Lost {
		m.conns.close()
	}
}

// doubt makes an answer of the peer needed at once.
func (s *members) doubt(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.do(m, peering.Ping)
}

// pingAll pings all peers at once.
func (s *members) pingAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.all {
		changes.Poke(m.pingKick)
	}
}

// Links returns the peers that have a tunnel, by ID. Nodes of this cluster are none.
func (s *members) Links() []peer.Link {
	linked, _ := s.Peerings()
	return linked
}

// Peerings returns all peers at one moment, by ID: those that have a tunnel, as Links, and those that have none yet, or
// not any more. Nodes of this cluster are none.
func (s *members) Peerings() (linked []peer.Link, others []peer.Unlinked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sorted() {
		if m.Record().Trust.Node() {
			continue
		}
		if l, ok := m.Link(); ok {
			linked = append(linked, l)
		} else if u, ok := peering.Unlinked(m.Machine); ok {
			others = append(others, u)
		}
	}
	return linked, others
}

// Link returns the link to one peer, and false if there is none.
func (s *members) Link(id peer.ID) (peer.Link, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.byID(id); m != nil {
		return m.Link()
	}
	return peer.Link{}, false
}

// Changed returns a channel that receives after Peers, Links or Problems have changed in more than a round trip time,
// and the function that ends the subscription. Several changes may arrive as one.
func (s *members) Changed() (<-chan struct{}, func()) { return s.changed.Changed() }

// Owner is the peer that owns an address in the tunnel, empty if there is none.
func (s *members) Owner(source netip.Addr) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.peers() {
		if m.Record().PeerMappedCIDR.IsValid() && m.Record().PeerMappedCIDR.Contains(source) {
			return string(m.ID())
		}
	}
	return ""
}

// Life returns a context that ends with the peering; nil if the cluster is no peer.
func (s *members) Life(id peer.ID) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.byID(id); m != nil && m.Pinned() {
		return m.served
	}
	return nil
}

// part makes the cluster a stranger: its requests end, nothing is learnt from it, and its record is removed. It is called
// between two messages, so that it does not remove the record of a peering that has begun anew.
func (s *members) part(p trust.Revocation) error {
	s.mu.Lock()
	if m := s.byID(p.ID); m != nil {
		m.unpin()
	}
	s.mu.Unlock()
	if err := s.store.DeletePeer(p.ID); err != nil {
		return fmt.Errorf("%s is no peer any more, yet its record may come back after a restart: %w", p.Name, err)
	}
	return nil
}

// drop shows the end of a peering, and removes the peer from the tunnel.
func (s *members) drop(id peer.ID, p trust.Revocation) {
	s.mu.Lock()
	if m := s.byID(id); m != nil {
		reason := ""
		switch {
		case p.Denied:
			reason = deniedReason(p)
		case p.ByPeer:
			reason = "it has ended the peering"
		}
		s.do(m, m.Ended(time.Now(), p.Denied, reason))
	}
	s.names()
	s.changed.Notify()
	s.mu.Unlock()
	s.plane.kick()
}
