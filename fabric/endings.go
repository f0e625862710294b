package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// farewellTimeout bounds the notification of a peer about the end of its peering.
const farewellTimeout = 3 * time.Second

var errConfirmed = errors.New("fabric: the peer has confirmed the peering meanwhile")

// Unpeer has the options for the end of a peering.
type Unpeer struct {
	// Force ends it even if the peer cannot be notified.
	Force bool
	// Forget leaves no revocation: the cluster may return by itself.
	Forget bool
	// Onesided ends it only if the peer has not confirmed it.
	Onesided bool
}

// endings ends peerings, from either side.
type endings struct {
	identity  rpc.Identity
	decisions *trust.Store
	members   *members
	party     *pairing.Party
	plane     *plane
	clients   *clients
	admission *admission
	log       *slog.Logger
}

// Unpeer ends the peering with a cluster: when it returns, nothing is sent to it or accepted from it. The cluster is
// notified; if that fails, it receives the end at its next exchange.
//
//	store the revocation, requests end, delete the record ─▶ notify ─▶ tunnel and routes end
//
// A power cut in between is repaired when the records are loaded. If the peering has ended already, only whether it is
// remembered changes.
func (e *endings) Unpeer(ctx context.Context, target string, how Unpeer) (peer.View, error) {
	id, err := e.members.pinned(target)
	if err == nil {
		return e.unpeer(ctx, id, how)
	}
	if several := ambiguousError(""); errors.As(err, &several) {
		return peer.View{}, err
	}
	p, ok, several := revoked(e.decisions, target)
	if several != nil {
		return peer.View{}, several
	}
	if ok && p.WasPeer {
		if p.Denied == how.Forget {
			p.Denied = !how.Forget
			pinned := false
			_, err := e.party.Farewell(p.ID, func(heard, skip uint64) error {
				if _, pinned = e.members.record(p.ID); pinned {
					return nil
				}
				p.Heard, p.Skip = heard, skip
				return errors.Join(e.decisions.Revoke(p), e.members.part(p))
			})
			if pinned { // it has become a peer again meanwhile
				return e.unpeer(ctx, p.ID, how)
			}
			e.members.drop(p.ID, p)
			if err != nil {
				return peer.View{}, err
			}
		}
		return peer.View{Record: peer.Record{ID: p.ID, Name: p.Name}, State: peer.Denied, Notice: "it was none before"}, nil
	}
	return peer.View{}, err
}

// revoked finds the cluster that the target names among those with a revocation, and returns an error if there are several.
func revoked(decisions *trust.Store, target string) (p trust.Revocation, ok bool, err error) {
	names := func(p trust.Revocation) (peer.ID, []string) { return p.ID, []string{p.Name} }
	all := decisions.Revocations()
	switch found := peer.Meant(all, target, names); len(found) {
	case 0:
		return p, false, nil
	case 1:
		return found[0], true, nil
	default:
		return p, false, ambiguous(target, peer.Distinct(found, all, names))
	}
}

func (e *endings) unpeer(ctx context.Context, id peer.ID, how Unpeer) (peer.View, error) {
	r, ok := e.members.record(id)
	if !ok {
		return peer.View{}, noPeer(id.Short())
	}
	if !how.Force {
		if err := e.reach(ctx, id); err != nil {
			return peer.View{}, fmt.Errorf("%s cannot be told (%w); if it is gone, or this cannot wait: rivulet unpeer --force %s", r.Name, err, r.Name)
		}
	}
	p := trust.Revocation{ID: id, Name: r.Name, At: time.Now(), Denied: !how.Forget, WasPeer: true}
	ways := e.waysTo(id)
	var stays error
	end, err := e.party.Farewell(id, func(heard, skip uint64) error {
		switch r, pinned := e.members.record(id); {
		case !pinned && how.Forget:
			return noPeer(id.Short()) // it has ended meanwhile, perhaps with a denial
		case how.Onesided && !r.Unconfirmed:
			return errConfirmed
		}
		p.Heard, p.Skip = heard, skip
		if err := e.decisions.Revoke(p); err != nil {
			return err
		}
		stays = e.members.part(p)
		return nil
	})
	if err != nil {
		return peer.View{}, err
	}
	if how.Force { // do not wait, not even for a last message through the tunnel
		e.plane.kick()
	}
	told := e.sendEnd(ctx, id, ways, end)
	e.members.drop(id, p)
	e.awaitGone(id)
	e.log.Info("peering ended", "peer", r.Name, "id", id.Short(), "told", told)
	if !told && stays == nil && !how.Force {
		e.log.Warn("the peer could not be told, it hears it when it calls", "peer", r.Name)
	}
	v := peer.View{Record: peer.Record{ID: id, Name: r.Name}, State: peer.Denied, Reason: deniedReason(p)}
	return v, stays
}

// way is one path to a peer: on the LAN, or with dial through the tunnel.
type way struct {
	at   netip.AddrPort
	dial pairing.Dial
}

func (e *endings) waysTo(id peer.ID) (out []way) {
	e.members.mu.Lock()
	defer e.members.mu.Unlock()
	m := e.members.byID(id)
	if m == nil {
		return nil
	}
	if l, ok := m.Link(); ok && e.plane.has(id) {
		out = append(out, way{l.Addr, e.clients.Dial})
	}
	for _, a := range m.Addrs().All() {
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
		if one := <-results; one == nil {
			return nil
		} else if pairing.Refused(one) || pairing.Code(err) == "" {
			err = one
		}
	}
	return err
}

// reach reports whether the peer can be notified now.
func (e *endings) reach(ctx context.Context, id peer.ID) error {
	return anyWay(ctx, e.waysTo(id), func(ctx context.Context, w way) error {
		return pairing.Reach(ctx, e.identity, id, w.at, w.dial)
	})
}

func (e *endings) sendEnd(ctx context.Context, id peer.ID, ways []way, end pairing.End) bool {
	return anyWay(ctx, ways, func(ctx context.Context, w way) error {
		return pairing.SendEnd(ctx, e.identity, id, w.at, w.dial, end)
	}) == nil
}

// awaitGone waits, within bounds, until the data plane is configured: a tunnel that does not run has no peers either.
func (e *endings) awaitGone(id peer.ID) {
	deadline := time.Now().Add(3 * time.Second)
	for e.plane.has(id) && time.Now().Before(deadline) {
		e.members.mu.Lock()
		running := e.members.run != nil
		e.members.mu.Unlock()
		if !running {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// endedByThem processes that a peer has ended the peering.
func (e *endings) endedByThem(id peer.ID, heard, skip uint64) error {
	r, ok := e.members.record(id)
	if !ok {
		return nil
	}
	p := trust.Revocation{ID: id, Name: r.Name, At: time.Now(), ByPeer: true, WasPeer: true, Heard: heard, Skip: skip,
		Undone: r.Trust.How == peer.TrustWorker && r.Node == ""}
	if err := e.decisions.Revoke(p); err != nil {
		return err
	}
	e.log.Info("the peer has ended the peering", "peer", r.Name, "id", id.Short())
	err := e.members.part(p)
	e.members.drop(id, p)
	return err
}

// endedThere reports whether a refusal means that the other side has ended the peering, and processes that. The sender
// is proved: the exchange goes to no other key.
func (e *endings) endedThere(id peer.ID, err error) bool {
	if pairing.Code(err) != "unpeered" && pairing.Code(err) != "denied" {
		return false
	}
	if _, err := e.party.Farewell(id, func(heard, skip uint64) error { return e.endedByThem(id, heard, skip) }); err != nil {
		e.log.Warn("a peer has ended the peering, and that cannot be stored", "id", id.Short(), "err", err)
	}
	return true
}

// Departed returns the clusters that were peers and are none, nodes of this cluster among them: their pods here can be
// removed.
func (e *endings) Departed() (out []peer.ID) {
	for _, r := range e.members.records() {
		if r.Trust.Node() {
			out = append(out, r.ID)
		}
	}
	for _, p := range e.decisions.Revocations() {
		if _, pinned := e.members.record(p.ID); p.WasPeer && !pinned {
			out = append(out, p.ID)
		}
	}
	return out
}

// Leave notifies all peers that this cluster is about to forget them. From here on no cluster becomes a peer in this
// run. With nodes it also notifies other nodes of this cluster. It returns the names of the notified ones.
func (e *endings) Leave(ctx context.Context, nodes bool) (told []string) {
	e.party.Between(func() { e.admission.leaving.Store(true) })
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, r := range e.members.records() {
		if r.Trust.Node() && !nodes {
			continue
		}
		wg.Go(func() {
			end, _ := e.party.Farewell(r.ID, nil)
			if e.sendEnd(ctx, r.ID, e.waysTo(r.ID), end) {
				mu.Lock()
				told = append(told, r.Name)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return told
}

// UnpeerLAN forgets all peers trusted by lan alone; those in use only with force. They may return by
// themselves, if trust.mode permits.
func (e *endings) UnpeerLAN(ctx context.Context, force bool) (gone, stay []string, err error) {
	used, known := e.admission.lan.InUse()
	if !known && !force {
		return nil, nil, errors.New("it is not known yet what runs on peers and for them; wait until rivulet status shows this device Ready, or add --force: then all go")
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	for _, r := range e.members.records() {
		if r.Trust.How != peer.TrustLAN {
			continue
		}
		if !force && used[r.ID] {
			stay = append(stay, r.Name)
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, failed := e.unpeer(ctx, r.ID, Unpeer{Force: true, Forget: true})
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = fmt.Errorf("%s: %w", r.Name, failed)
				return
			}
			gone = append(gone, r.Name)
		})
	}
	wg.Wait()
	slices.Sort(gone)
	slices.Sort(stay)
	return gone, stay, err
}
