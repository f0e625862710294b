package fabric

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

// farewellTimeout bounds the notification of a peer about the end of its peering.
const farewellTimeout = 3 * time.Second

// Unpeer has the options for the end of a peering.
type Unpeer struct {
	// Force ends it even if the peer cannot be notified.
	Force bool
	// Forget leaves no revocation: the cluster may return by itself.
	Forget bool
}

// Unpeer ends the peering with a cluster: when it returns, nothing is sent to it or accepted from it. The cluster is
// notified; if that fails, it receives the end at its next exchange.
//
//	store the revocation, requests end ─▶ notify ─▶ delete the record, tunnel and routes end
//
// A power cut in between is repaired when the records are loaded. If the peering has ended already, only whether it is
// remembered changes.
func (f *Fabric) Unpeer(ctx context.Context, target string, how Unpeer) (peer.View, error) {
	id, err := f.pinned(target)
	if p, ok := f.revoked(target); err != nil && ok && p.WasPeer {
		if p.Denied == how.Forget {
			p.Denied = !how.Forget
			_, err := f.party.Farewell(p.ID, func(heard, skip uint64) error {
				p.Heard, p.Skip = heard, skip
				return f.decisions.Revoke(p)
			})
			if err = errors.Join(err, f.drop(p.ID, p)); err != nil {
				return peer.View{}, err
			}
		}
		return peer.View{Record: peer.Record{ID: p.ID, Name: p.Name}, State: peer.Denied, Notice: "it was none before"}, nil
	}
	if err != nil {
		return peer.View{}, err
	}
	return f.unpeer(ctx, id, how)
}

// revoked finds the cluster with the given name among those with a revocation.
func (f *Fabric) revoked(target string) (trust.Revocation, bool) {
	for _, p := range f.decisions.Revocations() {
		if strings.EqualFold(p.Name, target) || string(p.ID) == target || len(target) >= 4 && strings.HasPrefix(string(p.ID), target) {
			return p, true
		}
	}
	return trust.Revocation{}, false
}

func (f *Fabric) unpeer(ctx context.Context, id peer.ID, how Unpeer) (peer.View, error) {
	r, ok := f.record(id)
	if !ok {
		return peer.View{}, noPeer(id.Short())
	}
	if !how.Force {
		if err := f.reach(ctx, id); err != nil {
			return peer.View{}, fmt.Errorf("%s cannot be told (%w); if it is gone, or this cannot wait: rivulet unpeer --force %s", r.Name, err, r.Name)
		}
	}
	p := trust.Revocation{ID: id, Name: r.Name, At: time.Now(), Denied: !how.Forget, WasPeer: true}
	ways := f.waysTo(id)
	end, err := f.party.Farewell(id, func(heard, skip uint64) error {
		p.Heard, p.Skip = heard, skip
		if err := f.decisions.Revoke(p); err != nil {
			return err
		}
		f.part(id)
		return nil
	})
	if err != nil {
		return peer.View{}, err
	}
	if how.Force { // do not wait, not even for a last message through the tunnel
		f.plane.kick()
	}
	told := f.sendEnd(ctx, id, ways, end)
	err = f.drop(id, p)
	f.awaitGone(id)
	f.log.Info("peering ended", "peer", r.Name, "id", id.Short(), "told", told)
	if !told && err == nil && !how.Force {
		f.log.Warn("the peer could not be told, it hears it when it calls", "peer", r.Name)
	}
	v := peer.View{Record: peer.Record{ID: id, Name: r.Name}, State: peer.Denied, Reason: deniedReason(p)}
	return v, err
}

// way is one path to a peer: on the LAN, or with dial through the tunnel.
type way struct {
	at   netip.AddrPort
	dial pairing.Dial
}

func (f *Fabric) waysTo(id peer.ID) (out []way) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	m := f.members.all[string(id)]
	if m == nil {
		return nil
	}
	if l, ok := m.Link(); ok && f.plane.has(id) {
		out = append(out, way{l.Addr, f.Dial})
	}
	for _, a := range m.Addrs() {
		out = append(out, way{a, nil})
	}
	return out
}

// anyWay calls do for all paths at once, and returns nil after the first success.
func anyWay(ctx context.Context, ways []way, do func(context.Context, way) error) error {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout)
	defer cancel()
	results := make(chan error, len(ways))
	for _, w := range ways {
		go func() { results <- do(ctx, w) }()
	}
	err := errors.New("no address of it is known")
	for range ways {
		if e := <-results; e == nil {
			return nil
		} else if pairing.Refused(e) || pairing.Code(err) == "" {
			err = e
		}
	}
	return err
}

// reach reports whether the peer can be notified now.
func (f *Fabric) reach(ctx context.Context, id peer.ID) error {
	return anyWay(ctx, f.waysTo(id), func(ctx context.Context, w way) error {
		return pairing.Reach(ctx, f.cfg.Identity, id, w.at, w.dial)
	})
}

func (f *Fabric) sendEnd(ctx context.Context, id peer.ID, ways []way, end pairing.End) bool {
	return anyWay(ctx, ways, func(ctx context.Context, w way) error {
		return pairing.SendEnd(ctx, f.cfg.Identity, id, w.at, w.dial, end)
	}) == nil
}

// part makes the cluster a stranger: its requests end, and nothing is learnt from it.
func (f *Fabric) part(id peer.ID) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	if m := f.members.all[string(id)]; m != nil {
		m.unpin()
	}
}

// drop removes the record, and the peer from the tunnel.
func (f *Fabric) drop(id peer.ID, p trust.Revocation) error {
	err := f.cfg.Store.DeletePeer(id)
	f.members.mu.Lock()
	if m := f.members.all[string(id)]; m != nil {
		reason := ""
		switch {
		case p.Denied:
			reason = deniedReason(p)
		case p.ByPeer:
			reason = "it has ended the peering"
		}
		f.do(m, m.Ended(time.Now(), p.Denied, reason))
	}
	f.names()
	f.changed.Notify()
	f.members.mu.Unlock()
	f.plane.kick()
	if err != nil {
		return fmt.Errorf("%s is no peer any more, yet its record may come back after a restart: %w", p.Name, err)
	}
	return nil
}

// awaitGone waits, within bounds, until the data plane is configured: a tunnel that does not run has no peers either.
func (f *Fabric) awaitGone(id peer.ID) {
	deadline := time.Now().Add(3 * time.Second)
	for f.plane.has(id) && time.Now().Before(deadline) {
		f.members.mu.Lock()
		running := f.members.run != nil
		f.members.mu.Unlock()
		if !running {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// endedByThem processes that a peer has ended the peering.
func (f *Fabric) endedByThem(id peer.ID, heard, skip uint64) error {
	r, ok := f.record(id)
	if !ok {
		return nil
	}
	p := trust.Revocation{ID: id, Name: r.Name, At: time.Now(), ByPeer: true, WasPeer: true, Heard: heard, Skip: skip}
	if err := f.decisions.Revoke(p); err != nil {
		return err
	}
	f.log.Info("the peer has ended the peering", "peer", r.Name, "id", id.Short())
	f.part(id)
	return f.drop(id, p)
}

// endedThere reports whether a refusal means that the other side has ended the peering, and processes that. The sender
// is proved: the exchange goes to no other key.
func (f *Fabric) endedThere(id peer.ID, err error) bool {
	if pairing.Code(err) != "unpeered" && pairing.Code(err) != "denied" {
		return false
	}
	if _, err := f.party.Farewell(id, func(heard, skip uint64) error { return f.endedByThem(id, heard, skip) }); err != nil {
		f.log.Warn("a peer has ended the peering, and that cannot be stored", "id", id.Short(), "err", err)
	}
	return true
}

// Departed returns the clusters that were peers and are none: their pods here can be removed.
func (f *Fabric) Departed() (out []peer.ID) {
	for _, p := range f.decisions.Revocations() {
		if _, pinned := f.record(p.ID); p.WasPeer && !pinned {
			out = append(out, p.ID)
		}
	}
	return out
}

// Leave notifies all peers that this cluster is about to forget them. From here on no cluster becomes a peer in this
// run. It returns the names of the notified ones.
func (f *Fabric) Leave(ctx context.Context) (told []string) {
	f.leaving.Store(true)
	f.members.mu.Lock()
	names := map[peer.ID]string{}
	for _, m := range f.members.all {
		if m.Pinned() {
			names[m.ID()] = m.Record().Name
		}
	}
	f.members.mu.Unlock()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for id, name := range names {
		wg.Go(func() {
			end, _ := f.party.Farewell(id, nil)
			if f.sendEnd(ctx, id, f.waysTo(id), end) {
				mu.Lock()
				told = append(told, name)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return told
}
