// Package lanpeers bounds the peers that are trusted by lan alone. Anybody on a link can invent clusters and have each
// trusted by lan. So the number of such peers is bounded: in total, per machine, and per time. A newcomer beyond the
// total replaces a peer that does not answer, otherwise the newest one, so that a flood displaces itself. At most
// BySource peers of other machines are displaced within Window. Peers in use, and those trusted by an operator, a group
// or an invite, are never displaced.
//
// It reads the present peers from its caller, and which of them are in use. It writes nothing: its counters begin anew
// with the process. While the use of peers is unknown, nobody is displaced.
package lanpeers

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/peer"
)

// Limits are the bounds.
type Limits struct {
	// Total bounds all of them, BySource those of one machine; the same bounds apply to new peers within Window.
	Total, BySource int
	Window          time.Duration
	// A peer without an answer for Silent may be displaced, one with answers only after Settled, so that newcomers do
	// not displace each other in turn.
	Silent, Settled time.Duration
}

// Default is for a machine with memory to spare: a class has 30 devices, a large site 200. One machine is a few
// clusters at most, as in discovery.
var Default = Limits{Total: 256, BySource: 16, Window: 10 * time.Minute, Silent: 2 * time.Minute, Settled: time.Hour}

// For returns the bounds by memory, bytes: a peer takes 0.6 MB.
func For(memory uint64) Limits {
	l := Default
	if memory > 0 {
		l.Total = int(min(uint64(l.Total), max(16, memory/(16<<20))))
	}
	return l
}

// Peer is a present peer that is trusted by lan alone.
type Peer struct {
	ID peer.ID
	// Source is the machine: see Admission.Room.
	Source string
	// Answers reports whether it is connected; State is when that began or ended, Trusted when it became a peer.
	Answers        bool
	State, Trusted time.Time
	// Leaving reports that another displaces it already.
	Leaving bool
}

// maxLeaving bounds the concurrent notifications to displaced peers.
const maxLeaving = 4

const (
	// inUseFor is how long a result of inUse is reused, since strangers can cause calls.
	inUseFor = 2 * time.Second
	// inUseStale is how long Room relies on a result.
	inUseStale = 10 * time.Second
)

// Admission admits peers within the limits. Its methods may be called concurrently.
type Admission struct {
	limits Limits
	inUse  func(context.Context) (map[peer.ID]bool, bool)

	using sync.Mutex // its holder may call inUse

	mu        sync.Mutex
	admitted  []admitted // within the window, the oldest first
	displaced []time.Time
	checked   time.Time
	used      map[peer.ID]bool
	known     bool
}

type admitted struct {
	at     time.Time
	source string
}

// New returns an Admission. InUse are the peers with pods or data of this cluster, or the reverse; false while that is
// unknown; nil is none. Zero limits are the default ones.
func New(l Limits, inUse func(context.Context) (map[peer.ID]bool, bool)) *Admission {
	if l == (Limits{}) {
		l = Default
	}
	return &Admission{limits: l, inUse: inUse}
}

// Admit counts a new peer of the machine.
func (a *Admission) Admit(source string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.admitted = append(a.admitted, admitted{time.Now(), source})
}

// Displaced counts a peer displaced by one of another machine.
func (a *Admission) Displaced() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.displaced = append(a.displaced, time.Now())
}

// counts are the new and the displaced peers within the window.
func (a *Admission) counts(source string) (all, same, displaced int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := func(at time.Time) bool { return time.Since(at) > a.limits.Window }
	a.admitted = slices.DeleteFunc(a.admitted, func(p admitted) bool { return old(p.at) })
	a.displaced = slices.DeleteFunc(a.displaced, old)
	for _, p := range a.admitted {
		if p.source == source {
			same++
		}
	}
	return len(a.admitted), same, len(a.displaced)
}

// Poll updates which peers are in use, if one more of the machine would displace one. It may take 2 s. Without it Room
// displaces nobody.
func (a *Admission) Poll(source string, present []Peer) {
	if places, _ := a.places(source, present); len(places) > 0 {
		a.InUse()
	}
}

// Room returns the peer that one more of the machine would displace, none if there is room, and false if there is no
// place. A source is what counts as one machine: the hardware address of a neighbour, or its address. It calls nobody.
func (a *Admission) Room(source string, present []Peer) (victim peer.ID, ok bool) {
	places, free := a.places(source, present)
	if free {
		return "", true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inUse != nil && (!a.known || time.Since(a.checked) > inUseStale) {
		return "", false
	}
	for _, p := range places {
		if !a.used[p.ID] {
			return p.ID, true
		}
	}
	return "", false
}

// places are the peers that one more of the machine might displace, those to go first, or free if it needs none.
func (a *Admission) places(source string, present []Peer) (places []Peer, free bool) {
	all, same, displaced := a.counts(source)
	if all >= a.limits.Total || same >= a.limits.BySource {
		return nil, false
	}
	total, same, leaving := 0, 0, 0
	for _, p := range present {
		if p.Leaving {
			leaving++
			continue
		}
		total++
		if p.Source == source {
			same++
		}
		if !p.Answers && time.Since(p.State) > a.limits.Silent || p.Answers && time.Since(p.Trusted) > a.limits.Settled {
			places = append(places, p)
		}
	}
	if total < a.limits.Total && same < a.limits.BySource {
		return nil, true
	}
	if same >= a.limits.BySource || displaced >= a.limits.BySource {
		places = slices.DeleteFunc(places, func(p Peer) bool { return p.Source != source })
	}
	if leaving >= maxLeaving {
		return nil, false
	}
	slices.SortFunc(places, before)
	return places, false
}

// before orders peers by how soon they are displaced: those that do not answer, the longest silence first; then the
// newest, since the peers of a flood are.
func before(a, b Peer) int {
	switch {
	case a.Answers && b.Answers:
		return cmp.Or(b.Trusted.Compare(a.Trusted), cmp.Compare(b.ID, a.ID))
	case a.Answers:
		return 1
	case b.Answers:
		return -1
	}
	return cmp.Or(a.State.Compare(b.State), cmp.Compare(a.ID, b.ID))
}

// InUse are the peers in use; false while that is unknown. It may take 2 s.
func (a *Admission) InUse() (map[peer.ID]bool, bool) {
	if a.inUse == nil {
		return nil, true
	}
	a.using.Lock()
	defer a.using.Unlock()
	a.mu.Lock()
	used, known, fresh := a.used, a.known, time.Since(a.checked) <= inUseFor
	a.mu.Unlock()
	if fresh {
		return used, known
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	used, known = a.inUse(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used, a.known, a.checked = used, known, time.Now()
	return used, known
}
