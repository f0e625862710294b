// Package peering is the state machine of one other cluster: its data, its state and the next actions. A Machine has no
// clock, no lock, no I/O and no access to other clusters: an event changes it and returns Effects. Package fabric
// delivers the events one at a time and carries out the effects; it alone stores records.
//
//	            ┌────────── Failed, Requested ───────┐
//	            ▼                                    │
//	Refused, Waiting, Denied ──Failed (no answer)──▶ Discovered ──Pin──▶ Connecting ──Answered──▶ Connected
//	            ▲                                    ▲                       ▲                     │  ▲
//	            └──── Ended (denied) ────────────────┴──── Ended ────────────┴─────────────────────┤  │ Answered
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

// Effects are the actions that an event requires of its caller.
type Effects uint8

const (
	// Changed: the view of the cluster has changed.
	Changed Effects = 1 << iota
	// Entered: the state has changed; Changed is set, too.
	Entered
	// Exchange: the time of the next exchange has changed, or the exchange is less urgent.
	Exchange
	// Ping at once.
	Ping
	// Configure: the data plane's configuration has changed.
	Configure
	// Doubt: the data plane may have lost its configuration.
	Doubt
)

// Timing is how often a peer is pinged: see fabric.Timing.
type Timing struct {
	Ping, Probe, PingTimeout, Confirm time.Duration
	Misses                            int
}

// Machine is one other cluster, a peer or not yet.
type Machine struct {
	timing Timing
	id     peer.ID // empty while only an address is known
	began  time.Time

	found       map[string]discovery.Entry // by source and key
	earlier     []netip.AddrPort           // announced before found, since the last exchange; the newest first
	name        string                     // last claimed by a cluster that is no peer
	requestedAt netip.AddrPort             // source of a refused request
	given       []netip.AddrPort           // addresses given by an operator or an invite
	proved      bool                       // ownership of the ID was proved by TLS
	held        bool                       // approved in this run: not forgotten

	pinned    bool
	rec       peer.Record // zero unless pinned
	notice    string      // does not prevent the peer from working
	displaced bool        // replaced by another: it ceases to be a peer
	unsure    time.Time   // since when it has not confirmed its record, in this run; zero if it has
	keyTaken  wgkey.Public
	tryNext   bool // no answers with its present WireGuard key

	state    peer.State
	since    time.Time
	reason   string
	here     bool  // reason is about this device's tunnel
	refusal  error // of the last exchange, nil if it succeeded
	mine     bool  // this cluster has refused
	lastSeen time.Time
	rtt      time.Duration
	nearness nearness
	misses   int
	without  time.Time // since when there is no tunnel; zero while there is one

	pace       pairing.Pace
	backoff    pairing.Pace // of the present attempt
	tells      bool         // an exchange is due because of a change here
	attempting bool
	attempts   int       // completed
	exchanged  time.Time // last success in this run
}

// lasting is how many answers in a row change the nearness: it is a label of nodes, and one slow answer is none.
const lasting = 5

// nearness is the class of a peer's round trips.
type nearness struct {
	class int
	moved int // answers in a row of another class
}

// follow takes the class of an answer, and reports whether the nearness has changed.
func (n *nearness) follow(class int) bool {
	if class == n.class {
		n.moved = 0
		return false
	}
	if n.moved++; n.moved < lasting && n.class > 0 {
		return false
	}
	n.class, n.moved = class, 0
	return true
}

// New returns the Machine of a cluster of which at most the ID is known.
func New(id peer.ID, now time.Time, t Timing) *Machine {
	return &Machine{timing: t, id: id, began: now, since: now, state: peer.Discovered, found: map[string]discovery.Entry{}}
}

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

// Found processes a discovery entry; moved reports that the entry has changed. First reports that this side begins
// exchanges with the cluster.
func (m *Machine) Found(now time.Time, key string, e discovery.Entry, moved, first bool) Effects {
	m.earlier = kept(m.found[key], e, m.earlier)
	m.found[key] = e
	do := Changed | Configure
	switch {
	case !m.pinned:
		do |= m.Due(now, m.id == "" || first)
	case moved || m.state != peer.Connected || !slices.Contains(e.Addrs, m.rec.Control):
		if again := m.exchanged.Add(pairing.Grace); m.state == peer.Connected && again.After(now) {
			now = again // anybody may announce any address as often as he likes
		}
		do |= m.Due(now, true) // only the exchange proves the address, and moves the endpoint
	}
	return do
}

// kept returns the addresses to keep of an announcement that another replaces, and of earlier ones: any may be false.
func kept(old, present discovery.Entry, earlier []netip.AddrPort) (out []netip.AddrPort) {
	if old.ID == "" { // configured, not announced
		return earlier
	}
	for _, a := range slices.Concat(old.Addrs, earlier) {
		if !slices.Contains(present.Addrs, a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out[:min(len(out), discovery.MaxAddrs)]
}

// Gone removes one source's entry, and reports whether none is left.
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

// Due makes an exchange due: at once, or after the grace that lets the other side begin.
func (m *Machine) Due(now time.Time, atOnce bool) Effects {
	m.pace.Found(now, atOnce)
	m.tells = m.tells || atOnce
	return Exchange
}

// Next is when an exchange is due, false if none is.
func (m *Machine) Next() (time.Time, bool) { return m.pace.Next() }

func (m *Machine) due() bool {
	_, due := m.pace.Next()
	return due
}

// Begin starts an attempt to exchange. An exchange that becomes due from here on is another attempt.
func (m *Machine) Begin() {
	m.backoff, m.attempting, m.tells = m.pace, true, false
	m.pace.Done()
}

func (m *Machine) End() { m.attempting, m.attempts = false, m.attempts+1 }

// Exchanged processes a successful exchange, in which the peer received the next key of this cluster. The peering may
// have ended since.
func (m *Machine) Exchanged(now time.Time, taken wgkey.Public) Effects {
	if !m.pinned {
		return 0
	}
	m.exchanged, m.backoff, m.refusal, m.keyTaken, m.earlier = now, pairing.Pace{}, nil, taken, nil
	return m.leaveApart(now) | Ping
}

// Received processes a successful exchange that the other side began. Complete reports that the peer has this cluster's
// prefix: otherwise one more exchange is needed.
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
	if !m.tells { // the answer may be older than what is to be told
		m.pace.Done()
	}
	m.exchanged, m.backoff, m.refusal, m.earlier = now, pairing.Pace{}, nil, nil
	return m.leaveApart(now) | Ping
}

func (m *Machine) leaveApart(now time.Time) Effects {
	if !m.state.Apart() {
		return 0
	}
	return m.enter(now, peer.Connecting, "")
}

// Failed processes a failed exchange. Mine reports that this cluster refused it; reason is for people.
func (m *Machine) Failed(now time.Time, err error, mine bool, reason string) (do Effects) {
	refused := pairing.Refused(err)
	m.refusal, m.mine = err, mine
	m.proved = m.proved || m.id != "" && !mine && answered(err)
	if !m.due() { // otherwise it was found again meanwhile
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

// Requested processes an exchange from the address that this cluster has refused.
func (m *Machine) Requested(now time.Time, name string, at netip.AddrPort, err error, reason string) Effects {
	if pairing.ValidName(name) { // a refused message may have any name
		m.name = name
	}
	m.requestedAt, m.proved, m.refusal, m.mine = at, true, err, true
	if m.state == peer.Connected {
		return Exchange
	}
	return Exchange | m.enter(now, RefusedState(err, true), reason)
}

// Pin makes the cluster a peer, or replaces its record; first reports that it was none before.
func (m *Machine) Pin(now time.Time, r peer.Record) (first bool, do Effects) {
	if r.WireGuardKey != m.rec.WireGuardKey {
		m.tryNext = false
	}
	first = !m.pinned
	m.rec, m.pinned = r, true
	if !r.Unconfirmed {
		m.unsure = time.Time{}
	} else if m.unsure.IsZero() {
		m.unsure = now
	}
	return first, Changed | Configure | m.leaveApart(now)
}

// Loaded is Pin for a stored record, before any other event.
func (m *Machine) Loaded(now time.Time, r peer.Record, first bool) Effects {
	_, do := m.Pin(now, r)
	return do | m.enter(now, peer.Connecting, m.keyless()) | m.Due(now, first)
}

// Unpin makes the cluster a stranger, without a tunnel and answers.
func (m *Machine) Unpin() {
	if m.pinned {
		m.name, m.pinned, m.rec, m.notice, m.rtt, m.nearness, m.misses, m.displaced = m.rec.Name, false, peer.Record{}, "", 0, nearness{}, 0, false
		m.without, m.unsure = time.Time{}, time.Time{}
	}
}

// Onesided reports whether only this cluster has the other as a peer: the other called, and has refused an attempt that
// began after that, or has not confirmed the peering in time. One that answers in the tunnel has this one's key.
func (m *Machine) Onesided(began, now time.Time) bool {
	refused := !m.mine && answered(m.refusal) && pairing.Refused(m.refusal) && m.unsure.Before(began)
	return m.pinned && m.state != peer.Connected && !m.unsure.IsZero() && (refused || now.Sub(m.unsure) > m.timing.Confirm)
}

// Ended processes the end of a peering, or the denial of a cluster; without denied the cluster may return. It does
// nothing to a cluster that has become a peer meanwhile.
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

// Approved processes an operator's approval, with a name if the cluster has none, and addresses if there are any.
func (m *Machine) Approved(now time.Time, name string, at []netip.AddrPort) Effects {
	m.held, m.name = true, cmp.Or(m.name, name)
	if len(at) > 0 {
		m.given = at
	}
	return m.enter(now, peer.Discovered, "") | m.Due(now, true)
}

// Withdrawn removes an approval that has not led to a peering.
func (m *Machine) Withdrawn(now time.Time) Effects {
	if m.pinned {
		return 0
	}
	m.held, m.given, m.refusal = false, nil, nil
	m.pace.Done()
	return Exchange | m.enter(now, peer.Discovered, "")
}

// Reconsider makes an exchange due because the rules of trust have changed: with a stranger, and with a peer by lan, which
// may be a member of the group.
func (m *Machine) Reconsider(now time.Time) Effects {
	if m.pinned && m.rec.Trust.How != peer.TrustLAN || !m.pinned && len(m.found) == 0 && !m.requestedAt.IsValid() {
		return 0
	}
	return m.Due(now, true)
}

// Displace marks a peer that another will replace, or one that stays after all.
func (m *Machine) Displace(on bool) { m.displaced = on }

// Notice sets what people should read about a peer that works.
func (m *Machine) Notice(notice string) Effects {
	if m.notice == notice {
		return 0
	}
	m.notice = notice
	return Changed
}

// Answered processes an answered ping, and returns when the next one is due.
func (m *Machine) Answered(now time.Time, rtt time.Duration) (time.Duration, Effects) {
	m.misses, m.lastSeen, m.rtt, m.here, m.without = 0, now, rtt, false, time.Time{}
	do := m.enter(now, peer.Connected, "")
	if m.nearness.follow(peer.Nearness(rtt)) {
		do |= Changed
	}
	if m.tryNext && !m.due() && !m.attempting {
		do |= m.Due(now, true) // its key has changed: the exchange brings the new one
	}
	return m.timing.Ping, do
}

// Missed processes an unanswered ping. Trouble is the failure of this device's tunnel, if any.
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
	here := m.here // the reason does not apply any more
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
	if !m.due() && !m.attempting && now.Sub(m.exchanged) > 3*m.timing.Ping {
		do |= m.Due(now, true) // perhaps one side has moved, or has forgotten the other
	}
	if m.misses < 20 {
		return m.timing.Probe, do
	}
	return m.timing.Ping, do
}

// Unplugged processes that this device has no tunnel to the peer, with the reason if known, and returns when to check
// again. A tunnel that is configured again, or whose process is replaced, is back before a peer counts as lost.
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

// Forgettable reports whether the cluster may be forgotten.
func (m *Machine) Forgettable() bool { return !m.pinned && !m.held }

// Idle reports whether it is a stranger that no source sees.
func (m *Machine) Idle() bool { return !m.pinned && len(m.found) == 0 }

// Hope ranks an announced stranger for displacement, with so many others at its address: lower is dropped first. It returns
// false for one that must not be dropped, announced or not: an operator has approved it, or an exchange is under way.
func (m *Machine) Hope(now time.Time, others int) (hope int, droppable bool) {
	droppable = !m.pinned && !m.held && !m.attempting
	if m.reason == "" && now.Sub(m.began) < fresh {
		return 1<<20 - others, droppable // not tried yet
	}
	return -others, droppable
}

// fresh is how long a stranger that was not tried yet ranks above those that were.
const fresh = 10 * time.Second

// Key is the WireGuard key of the peer in use: the next one while the present one does not answer.
func (m *Machine) Key() wgkey.Public {
	if m.tryNext && !m.rec.NextWireGuardKey.IsZero() {
		return m.rec.NextWireGuardKey
	}
	return m.rec.WireGuardKey
}

// sources are the names of the sources that see the cluster now. A key is "source/key".
func sources(found map[string]discovery.Entry) (out []string) {
	for _, key := range slices.Sorted(maps.Keys(found)) {
		if name, _, _ := strings.Cut(key, "/"); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
