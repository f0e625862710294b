package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"rivulet/fabric/lanpeers"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// The number of peers that are trusted by lan alone is bounded by package lanpeers.

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

// lanPeers are the peers trusted by lan alone.
func (f *Fabric) lanPeers() (out []lanpeers.Peer) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	for _, m := range f.members.all {
		if m.Pinned() && m.Record().Trust.How == peer.TrustLAN {
			out = append(out, lanpeers.Peer{ID: m.ID(), Source: m.source(), Leaving: m.Displaced(),
				Answers: m.State() == peer.Connected, State: m.Since(), Trusted: m.Record().Trust.At})
		}
	}
	return out
}

// roomFor returns the peer that a stranger at the address would displace; none if there is room.
func (f *Fabric) roomFor(at netip.Addr, name string) (victim peer.ID, err error) {
	victim, ok := f.lan.Room(f.source(at), f.lanPeers())
	if !ok {
		return "", pairing.FullError(f.settings.name.get(), name)
	}
	return victim, nil
}

// makeRoom admits one more peer by lan, or returns the reason why not. A displaced peer is notified, and may return
// when there is room.
func (f *Fabric) makeRoom(at netip.Addr, name string) error {
	victim, err := f.roomFor(at, name)
	if err != nil {
		return err
	}
	source := f.source(at)
	f.lan.Admit(source)
	if victim == "" {
		return nil
	}
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	if m := f.members.all[string(victim)]; m != nil && f.members.run != nil {
		m.Displace()
		if m.source() != source {
			f.lan.Displaced()
		}
		ctx := f.members.run
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
	used, known := f.lan.InUse()
	if !known && !force {
		return nil, nil, errors.New("it is not known yet what runs on peers and for them; wait until rivulet status shows this device Ready, or add --force: then all go")
	}
	names := map[peer.ID]string{}
	f.members.mu.Lock()
	for _, m := range f.members.all {
		if m.Pinned() && m.Record().Trust.How == peer.TrustLAN {
			names[m.ID()] = m.Record().Name
		}
	}
	f.members.mu.Unlock()
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
