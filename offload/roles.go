package offload

import (
	"context"
	"errors"
	"slices"
	"time"

	"rivulet/fabric/peer"
)

// A peering has two directions, and each can be switched off: then it is as if the
// other were no peer, in that direction. And a peering can end, which ends both.

// departed is a Peers that remembers who was a peer and is none.
type departed interface {
	Departed() []peer.ID
}

func (o *Offload) departed() []peer.ID {
	if d, ok := o.cfg.Peers.(departed); ok {
		return d.Departed()
	}
	return nil
}

// providers are the links to those that we may borrow from.
func (o *Offload) providers() map[peer.ID]peer.Link {
	links := map[peer.ID]peer.Link{}
	for _, l := range o.cfg.Peers.Links() {
		if !l.NoBorrow {
			links[l.ID] = l
		}
	}
	return links
}

// lends reports whether the cluster may borrow from us.
func (o *Offload) lends(id peer.ID) bool {
	return !slices.ContainsFunc(o.cfg.Peers.Links(), func(l peer.Link) bool { return l.ID == id && l.NoLend })
}

// borrowers are the peers that may borrow from us.
func (o *Offload) borrowers() map[peer.ID]bool {
	out := map[peer.ID]bool{}
	for _, l := range o.cfg.Peers.Links() {
		out[l.ID] = !l.NoLend
	}
	return out
}

// evicted are the clusters whose twins have to go. Each is one of which it is known
// that its time is over; that somebody is merely not in a list says nothing.
func (o *Offload) evicted() map[peer.ID]bool {
	out := map[peer.ID]bool{}
	for _, id := range o.departed() {
		out[id] = true
	}
	for _, l := range o.cfg.Peers.Links() {
		if out[l.ID] = l.NoLend; !l.NoLend {
			delete(out, l.ID)
		}
	}
	return out
}

// stillness is how long after the last twin of a cluster is gone no more can come: what
// was asked for before has been answered.
const stillness = 10 * time.Second

// followGuests deletes what is left of clusters to which nothing is lent any more.
// After a start it looks once at all of them.
func (o *Offload) followGuests(ctx context.Context) error {
	changed, stop := o.cfg.Peers.Changed()
	defer stop()
	clean := map[peer.ID]time.Time{} // since when nothing of it was seen here
	for {
		again := time.Duration(0)
		ids := o.evicted()
		for id := range clean {
			if !ids[id] {
				delete(clean, id)
			}
		}
		var errs []error
		for id := range ids {
			if since, ok := clean[id]; ok && time.Since(since) >= stillness {
				continue
			}
			again = tidy
			left, err := o.tenancy.Evict(ctx, id)
			errs = append(errs, err)
			if _, seen := clean[id]; left > 0 || err != nil {
				delete(clean, id)
			} else if !seen {
				clean[id] = time.Now()
			}
		}
		o.problem("twins of former peers", errors.Join(errs...))
		var timer <-chan time.Time
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-timer:
		}
	}
}
