package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// Anybody on a link can invent clusters and have each trusted by lan. So the number of such peers is bounded: in total,
// per machine, and per time. A newcomer beyond the total replaces a peer that does not answer, otherwise the newest
// one, so that a flood displaces itself. At most BySource peers of other machines are displaced within Window. Peers in
// use (Config.InUse), and those trusted by an operator, a group or an invite, are never displaced.

// LANPeers bounds the peers that are trusted by lan alone.
type LANPeers struct {
	// Total bounds all of them, BySource those of one machine; the same bounds apply to new peers within Window.
	Total, BySource int
	Window          time.Duration
	// A peer without an answer for Silent may be displaced, one with answers only after Settled, so that newcomers do
	// not displace each other in turn.
	Silent, Settled time.Duration
}

// DefaultLANPeers is for a machine with memory to spare: a class has 30 devices, a large site 200. One machine is a few
// clusters at most, as in discovery.
var DefaultLANPeers = LANPeers{Total: 256, BySource: 16, Window: 10 * time.Minute, Silent: 2 * time.Minute, Settled: time.Hour}

// LANPeersFor bounds the peers by memory, bytes: a peer takes 0.6 MB.
func LANPeersFor(memory uint64) LANPeers {
	l := DefaultLANPeers
	if memory > 0 {
		l.Total = int(min(uint64(l.Total), max(16, memory/(16<<20))))
	}
	return l
}

// maxDisplaced bounds the concurrent notifications to displaced peers.
const maxDisplaced = 4

// met are the new peers trusted by lan within the window, by source.
type met struct {
	mu   sync.Mutex
	when []time.Time
	who  []string
	out  []time.Time // when a peer was displaced by another machine

	checked time.Time // the time of inUse
	used    map[peer.ID]bool
	known   bool
}

func (m *met) note(source string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.when, m.who = append(m.when, time.Now()), append(m.who, source)
}

func (m *met) pushed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out = append(m.out, time.Now())
}

// lately counts the new peers, all and those of the source, and removes those older than the window.
func (m *met) lately(window time.Duration, source string) (all, same int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := 0
	for old < len(m.when) && time.Since(m.when[old]) > window {
		old++
	}
	m.when, m.who = slices.Delete(m.when, 0, old), slices.Delete(m.who, 0, old)
	for _, w := range m.who {
		if w == source {
			same++
		}
	}
	return len(m.who), same
}

// pushedOut counts the peers displaced by other machines within the window.
func (m *met) pushedOut(window time.Duration) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out = slices.DeleteFunc(m.out, func(at time.Time) bool { return time.Since(at) > window })
	return len(m.out)
}

// source is what counts as one machine: the hardware address of a neighbour, or its address where that is unknown.
func (f *Fabric) source(a netip.Addr) string {
	if f.cfg.Hardware != nil {
		if mac := f.cfg.Hardware(a); mac != "" {
			return mac
		}
	}
	return a.WithZone("").String()
}

// source is the source of a peer at the time of trust.
func (m *member) source() string {
	return cmp.Or(m.Record().Trust.Source, m.Record().Control.Addr().WithZone("").String())
}

// roomFor returns the peer that a stranger at the address would displace; none if there is room.
func (f *Fabric) roomFor(at netip.Addr, name string) (victim peer.ID, err error) {
	limits, source := f.cfg.LANPeers, f.source(at)
	full := pairing.FullError(f.name(), name)
	if all, same := f.met.lately(limits.Window, source); all >= limits.Total || same >= limits.BySource {
		return "", full
	}
	type place struct {
		id            peer.ID
		answers, same bool
		since         time.Time
	}
	var places []place
	total, same, leaving := 0, 0, 0
	f.mu.Lock()
	for _, m := range f.members {
		if !m.Pinned() || m.Record().Trust.How != peer.TrustLAN {
			continue
		}
		if m.Displaced() {
			leaving++
			continue
		}
		p := place{id: m.ID(), answers: m.State() == peer.Connected, since: m.Since()}
		p.same = m.source() == source
		total++
		if p.same {
			same++
		}
		wait := limits.Silent
		if p.answers {
			p.since, wait = m.Record().Trust.At, limits.Settled
		}
		if time.Since(p.since) > wait {
			places = append(places, p)
		}
	}
	f.mu.Unlock()
	if total < limits.Total && same < limits.BySource {
		return "", nil
	}
	slices.SortFunc(places, func(a, b place) int {
		if a.answers != b.answers {
			if a.answers {
				return 1
			}
			return -1
		}
		if a.answers { // the peers of a flood are the newest
			a, b = b, a
		}
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.id, b.id))
	})
	own := same >= limits.BySource || f.met.pushedOut(limits.Window) >= limits.BySource
	places = slices.DeleteFunc(places, func(p place) bool { return !p.same && own })
	if len(places) == 0 || leaving >= maxDisplaced {
		return "", full
	}
	used, known := f.inUse()
	for _, p := range places {
		if known && !used[p.id] {
			return p.id, nil
		}
	}
	return "", full
}

// inUseFor is how long a result of InUse is reused, since strangers can cause calls.
const inUseFor = 2 * time.Second

func (f *Fabric) inUse() (map[peer.ID]bool, bool) {
	if f.cfg.InUse == nil {
		return nil, true
	}
	f.met.mu.Lock()
	defer f.met.mu.Unlock()
	if time.Since(f.met.checked) > inUseFor {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		f.met.used, f.met.known = f.cfg.InUse(ctx)
		f.met.checked = time.Now()
	}
	return f.met.used, f.met.known
}

// makeRoom admits one more peer by lan, or returns the reason why not. A displaced peer is notified, and may return
// when there is room.
func (f *Fabric) makeRoom(at netip.Addr, name string) error {
	victim, err := f.roomFor(at, name)
	if err != nil {
		return err
	}
	source := f.source(at)
	f.met.note(source)
	if victim == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[string(victim)]; m != nil && f.run != nil {
		m.Displace()
		if m.source() != source {
			f.met.pushed()
		}
		ctx := f.run
		f.log.Info("a peer makes room for a newcomer", "peer", m.Record().Name, "id", victim.Short())
		f.loops.Go(func() { // not here: the caller holds the exchange's lock
			if _, err := f.unpeer(ctx, victim, Unpeer{Force: true, Forget: true}); err != nil {
				f.log.Warn("a peer that was to make room stays", "id", victim.Short(), "err", err)
			}
		})
	}
	return nil
}

// UnpeerLAN forgets all peers trusted by lan alone; those in use only with force. They may return by
// themselves, if trust.mode permits.
func (f *Fabric) UnpeerLAN(ctx context.Context, force bool) (gone, stay []string, err error) {
	used, known := f.inUse()
	if !known && !force {
		return nil, nil, errors.New("it is not known yet what runs on peers and for them; wait until rivulet status shows this device Ready, or add --force: then all go")
	}
	names := map[peer.ID]string{}
	f.mu.Lock()
	for _, m := range f.members {
		if m.Pinned() && m.Record().Trust.How == peer.TrustLAN {
			names[m.ID()] = m.Record().Name
		}
	}
	f.mu.Unlock()
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	for id, name := range names {
		if !force && used[id] {
			stay = append(stay, name)
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, e := f.unpeer(ctx, id, Unpeer{Force: true, Forget: true})
			mu.Lock()
			defer mu.Unlock()
			if e != nil {
				err = fmt.Errorf("%s: %w", name, e)
				return
			}
			gone = append(gone, name)
		})
	}
	wg.Wait()
	slices.Sort(gone)
	slices.Sort(stay)
	return gone, stay, err
}
