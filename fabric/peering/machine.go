// Package peering decides where one other cluster stands: what is known of it, the state that it is in, and what has to
// be done next. A Machine has no clock, no lock, no I/O and no view of other clusters: an event changes it and returns
// Effects. Package fabric delivers the events one at a time and carries the effects out; it alone stores records.
//
//	            ┌────────── Failed, Knocked ─────────┐
//	            ▼                                    │
//	Refused, Waiting, Denied ──Failed (no answer)──▶ Discovered ──Pin──▶ Connecting ──Answered──▶ Connected
//	            ▲                                    ▲                       ▲                     │  ▲
//	            └──── Ended (a person denies) ───────┴──── Ended ────────────┴─────────────────────┤  │ Answered
//	                                                                                 Missed × n    ▼  │
//	                                                                                              Lost
//
// A restart begins with Pin for each stored record; all else is learned again.
package peering

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// Effects are what an event asks of its caller.
type Effects uint8

const (
	// Changed: others see the cluster differently now.
	Changed Effects = 1 << iota
	// Entered: the state is another; Changed is set, too.
	Entered
	// Exchange: the time of the next exchange is another, or the exchange matters less.
	Exchange
	// Ping at once.
	Ping
	// Configure: the data plane's configuration is another.
	Configure
	// Doubt: the data plane may have lost its configuration.
	Doubt
)

// Timing is how often a peer is pinged: see fabric.Timing.
type Timing struct {
	Ping, Probe, PingTimeout time.Duration
	Misses                   int
}

// Machine is one other cluster, a peer or not yet.
type Machine struct {
	timing Timing
	id     peer.ID // empty while only an address is known
	began  time.Time

	found       map[string]discovery.Entry // by source and key
	name        string                     // as last claimed by one that is no peer
	requestedAt netip.AddrPort             // where a request came from that was refused
	given       []netip.AddrPort           // addresses that a person or an invite gives
	proved      bool                       // it has shown by TLS that the ID is its own
	held        bool                       // a person has approved it in this run: it is not forgotten

	pinned    bool
	rec       peer.Record // zero unless pinned
	notice    string      // does not keep the peer from working
	displaced bool        // another takes its place: it ceases to be a peer
	keyTaken  wgkey.Public
	tryNext   bool // its present WireGuard key has ceased to answer

	state    peer.State
	since    time.Time
	reason   string
	here     bool  // reason is about this device's tunnel
	refusal  error // of the last exchange, nil if it succeeded
	mine     bool  // the refusal is this cluster's own
	lastSeen time.Time
	rtt      time.Duration
	misses   int
	without  time.Time // since when this device has no tunnel to it; zero while it has one

	pace       pairing.Pace
	backoff    pairing.Pace // of the attempt that is under way
	attempting bool
	attempts   int       // that have ended
	exchanged  time.Time // last success in this run
}

// New returns the Machine of a cluster that nothing is known of but its ID, which may be empty.
func New(id peer.ID, now time.Time, t Timing) *Machine {
	return &Machine{timing: t, id: id, began: now, since: now, state: peer.Discovered, found: map[string]discovery.Entry{}}
}

// enter moves to a state.
func (m *Machine) enter(now time.Time, s peer.State, reason string) (do Effects) {
	if m.state == s && m.reason == reason {
		return 0
	}
	if m.state != s {
		m.state, m.since, do = s, now, Entered
	}
	m.reason = reason
	return do | Changed
}

// Found takes in what a discovery source says of it now; moved reports that it said something else before. First
// reports that this side begins exchanges with it.
func (m *Machine) Found(now time.Time, key string, e discovery.Entry, moved, first bool) Effects {
	m.found[key] = e
	do := Changed | Configure
	switch {
	case !m.pinned:
		do |= m.Due(now, m.id == "" || first)
	case moved || m.state != peer.Connected || !slices.Contains(e.Addrs, m.rec.Control):
		do |= m.Due(now, true) // only the exchange proves where it is, and moves the endpoint
	}
	return do
}

// Gone takes one source's entry away, and reports whether none is left.
func (m *Machine) Gone(key string) (last bool) {
	_, had := m.found[key]
	delete(m.found, key)
	return had && len(m.found) == 0
}

// TakeOver moves the entries of from, of which only an address was known, to m, and returns their keys.
func (m *Machine) TakeOver(from *Machine) []string {
	maps.Copy(m.found, from.found)
	keys := slices.Collect(maps.Keys(from.found))
	clear(from.found)
	return keys
}

// Due makes an exchange due: at once, or after the grace that the other side has to begin it.
func (m *Machine) Due(now time.Time, atOnce bool) Effects {
	m.pace.Found(now, atOnce)
	return Exchange
}

// Next is when an exchange is due, false if none is.
func (m *Machine) Next() (time.Time, bool) { return m.pace.Next() }

func (m *Machine) due() bool {
	_, due := m.pace.Next()
	return due
}

// Begin starts an attempt to exchange. What makes one due from here on leads to another.
func (m *Machine) Begin() {
	m.backoff, m.attempting = m.pace, true
	m.pace.Done()
}

// End is the end of the attempt, whatever came of it.
func (m *Machine) End() { m.attempting, m.attempts = false, m.attempts+1 }

// Exchanged takes in an exchange that succeeded, in which the peer took in the next key of this cluster.
func (m *Machine) Exchanged(now time.Time, taken wgkey.Public) (do Effects) {
	m.exchanged, m.backoff, m.refusal, m.keyTaken = now, pairing.Pace{}, nil, taken
	if m.state == peer.Connected {
		do = m.enter(now, peer.Connected, "")
	}
	return do | m.leaveApart(now) | Ping
}

// Received takes in an exchange that the other side began and that succeeded. Complete reports that it has
// taken in the prefix of this cluster: otherwise it has to come once more.
func (m *Machine) Received(now time.Time, complete bool) Effects {
	if !m.pinned {
		return 0
	}
	if !m.rec.Complete() || !complete {
		if m.due() {
			return 0
		}
		return m.Due(now, false)
	}
	m.pace.Done()
	m.exchanged, m.backoff, m.refusal = now, pairing.Pace{}, nil
	return m.leaveApart(now) | Ping
}

func (m *Machine) leaveApart(now time.Time) Effects {
	if !m.state.Apart() {
		return 0
	}
	return m.enter(now, peer.Connecting, "")
}

// Failed takes in an exchange that failed. Mine reports that this cluster refused it; reason is for people.
func (m *Machine) Failed(now time.Time, err error, mine bool, reason string) (do Effects) {
	refused := pairing.Refused(err)
	m.refusal, m.mine = err, mine
	m.proved = m.proved || m.id != "" && !mine && answered(err)
	if !m.due() { // else it was found anew meanwhile
		m.backoff.Failed(now, refused)
		m.pace = m.backoff
		do = Exchange
	}
	switch {
	case m.state == peer.Connected: // the tunnel is proof enough
		return do
	case refused || pairing.Code(err) == "pending":
		return do | m.enter(now, RefusedState(err, mine), reason)
	case m.state != peer.Refused && m.state != peer.Waiting && m.state != peer.Denied:
		return do | m.enter(now, m.state, reason)
	case m.pinned:
		return do | m.enter(now, peer.Connecting, reason)
	}
	return do | m.enter(now, peer.Discovered, reason)
}

// Requested takes in that this cluster has refused an exchange that the other one began, at the address.
func (m *Machine) Requested(now time.Time, name string, at netip.AddrPort, err error, reason string) Effects {
	if pairing.ValidName(name) { // of a message that was refused it may be anything
		m.name = name
	}
	m.requestedAt, m.proved, m.refusal, m.mine = at, true, err, true
	if m.state == peer.Connected {
		return Exchange
	}
	return Exchange | m.enter(now, RefusedState(err, true), reason)
}

// Pin makes it a peer, or gives it another record; first reports that it was none before.
func (m *Machine) Pin(now time.Time, r peer.Record) (first bool, do Effects) {
	if r.WireGuardKey != m.rec.WireGuardKey {
		m.tryNext = false
	}
	first = !m.pinned
	m.rec, m.pinned = r, true
	return first, Changed | Configure | m.leaveApart(now)
}

// Loaded is Pin for a record that was stored, before anything else is known.
func (m *Machine) Loaded(now time.Time, r peer.Record, first bool) Effects {
	_, do := m.Pin(now, r)
	return do | m.enter(now, peer.Connecting, m.keyless()) | m.Due(now, first)
}

// Unpin makes it a stranger. It has no tunnel and no answer from here on.
func (m *Machine) Unpin() {
	if m.pinned {
		m.name, m.pinned, m.rec, m.notice, m.rtt, m.misses, m.displaced = m.rec.Name, false, peer.Record{}, "", 0, 0, false
		m.without = time.Time{}
	}
}

// Ended takes in that the cluster is no peer any more, or must not become one: denied by a person, or free to come
// back later. It does nothing to one that has become a peer meanwhile.
func (m *Machine) Ended(now time.Time, denied bool, reason string) Effects {
	if m.pinned {
		return 0
	}
	m.held, m.refusal = false, nil
	m.pace.Done()
	if denied {
		return Exchange | m.enter(now, peer.Denied, reason)
	}
	return m.enter(now, peer.Discovered, reason) | m.Due(now, false)
}

// Approved takes in that a person approves it, under a name if it has none, at the addresses if there are any.
func (m *Machine) Approved(now time.Time, name string, at []netip.AddrPort) Effects {
	m.held, m.name = true, cmp.Or(m.name, name)
	if len(at) > 0 {
		m.given = at
	}
	return m.enter(now, peer.Discovered, "") | m.Due(now, true)
}

// Withdrawn takes an approval back that has led to nothing yet.
func (m *Machine) Withdrawn(now time.Time) Effects {
	if m.pinned {
		return 0
	}
	m.held, m.given, m.refusal = false, nil, nil
	m.pace.Done()
	return Exchange | m.enter(now, peer.Discovered, "")
}

// Reconsider makes an exchange due with a stranger, for the rules of trust are others now.
func (m *Machine) Reconsider(now time.Time) Effects {
	if m.pinned || len(m.found) == 0 && !m.requestedAt.IsValid() {
		return 0
	}
	return m.Due(now, true)
}

// Displace notes that another takes its place among the peers.
func (m *Machine) Displace() { m.displaced = true }

// Notice sets what people should know of a peer that works.
func (m *Machine) Notice(notice string) Effects {
	if m.notice == notice {
		return 0
	}
	m.notice = notice
	return Changed
}

// Answered takes in a ping that was answered, and returns when the next one is due.
func (m *Machine) Answered(now time.Time, rtt time.Duration) (time.Duration, Effects) {
	m.misses, m.lastSeen, m.rtt, m.here, m.without = 0, now, rtt, false, time.Time{}
	do := m.enter(now, peer.Connected, "")
	if m.tryNext && !m.due() && !m.attempting {
		do |= m.Due(now, true) // it has changed its key: the exchange brings the new one
	}
	return m.timing.Ping, do
}

// Missed takes in a ping that was not answered, and what this device's tunnel lacks, if anything.
func (m *Machine) Missed(now time.Time, trouble string) (next time.Duration, do Effects) {
	m.without = time.Time{}
	m.misses++
	do = Doubt
	if !m.rec.NextWireGuardKey.IsZero() && m.misses%(m.timing.Misses+2) == 0 { // perhaps it has changed its key
		m.tryNext = !m.tryNext
		do |= Configure
	}
	if m.misses < m.timing.Misses {
		return m.timing.Probe, do
	}
	m.rtt = 0
	here := m.here // what the reason says is over
	m.here = trouble != ""
	switch {
	case trouble == "" && (m.state == peer.Connected || here && m.state == peer.Lost):
		do |= m.enter(now, peer.Lost, "it has stopped answering: is it switched on, and "+m.passage())
	case m.state == peer.Connected:
		do |= m.enter(now, peer.Lost, trouble)
	case trouble != "" && m.state != peer.Refused:
		do |= m.enter(now, m.state, trouble)
	case (m.reason == "" || here) && m.state != peer.Refused:
		do |= m.enter(now, m.state, "the tunnel carries nothing yet: "+m.passage())
	}
	if !m.due() && !m.attempting && now.Sub(m.exchanged) > 5*m.timing.Ping {
		do |= m.Due(now, true) // perhaps one side has moved, or has forgotten the other
	}
	if m.misses < 20 {
		return m.timing.Probe, do
	}
	return m.timing.Ping, do
}

// Unplugged takes in that this device has no tunnel to the peer, why, if that is known, and returns when to look
// again. A tunnel that is configured anew, or whose process is replaced, is back before a peer counts as lost.
func (m *Machine) Unplugged(now time.Time, why string) (next time.Duration, do Effects) {
	if m.without.IsZero() {
		m.without = now
	}
	switch {
	case m.state == peer.Connected && now.Sub(m.without) < time.Duration(m.timing.Misses)*m.timing.PingTimeout:
		return m.timing.Probe, 0
	case m.state == peer.Connected:
		m.rtt, m.here = 0, true
		do = m.enter(now, peer.Lost, cmp.Or(why, "there is no tunnel on this device; look at: rivulet status"))
	case why != "" && m.state != peer.Refused:
		m.here = true
		do = m.enter(now, m.state, why)
	}
	return m.timing.Ping, do
}

// Forgettable reports whether nothing keeps the cluster from being forgotten.
func (m *Machine) Forgettable() bool { return !m.pinned && !m.held }

// Idle reports whether it is a stranger that no source sees.
func (m *Machine) Idle() bool { return !m.pinned && len(m.found) == 0 }

// Hope is how much there is to hope of a stranger where so many others are said to be at its address; false for one
// that is not to be dropped: it has proved its ID, a person stands for it, or an exchange is under way.
func (m *Machine) Hope(now time.Time, others int) (hope int, droppable bool) {
	if m.pinned || m.proved || m.held || m.attempting {
		return 0, false
	}
	if m.reason == "" && now.Sub(m.began) < fresh {
		return 1<<20 - others, true // not tried yet
	}
	return -others, true
}

// fresh is how long a stranger is given to be tried before another takes its place.
const fresh = 10 * time.Second

// Key is the WireGuard key to reach a peer by: the next one while the present one does not answer.
func (m *Machine) Key() wgkey.Public {
	if m.tryNext && !m.rec.NextWireGuardKey.IsZero() {
		return m.rec.NextWireGuardKey
	}
	return m.rec.WireGuardKey
}

// sources are those that see the cluster now, by name. A key is "source/key".
func (m *Machine) sources() (out []string) {
	for _, key := range slices.Sorted(maps.Keys(m.found)) {
		if name, _, _ := strings.Cut(key, "/"); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
