package fabric

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// A WireGuard key, present or next, has one owner: this cluster, the gateway of a foreign one, or one peer. Traffic for
// the owner's prefix is encrypted with it, so another claimant would receive that traffic. The first claimant keeps the
// key, unless it has not proved possession (pairing/possession.go) and a later one has.

// keysOf are the keys that a record claims.
func keysOf(r peer.Record) []wgkey.Public {
	return []wgkey.Public{r.WireGuardKey, r.NextWireGuardKey}
}

// keyOwner names the other owner of one of the keys; empty if there is none. By is that owner if it is a peer. It is
// called with mu held.
func (f *Fabric) keyOwner(id peer.ID, keys ...wgkey.Public) (name string, by *member) {
	_, public, _, next, _ := f.keys.ours()
	if wgkey.Common(keys, []wgkey.Public{public, next}) {
		return "this cluster", nil
	}
	for name, g := range f.gateways {
		if wgkey.Common(keys, []wgkey.Public{g.PublicKey}) {
			return "the gateway " + name, nil
		}
	}
	for _, m := range f.members {
		if m.Pinned() && m.ID() != id && wgkey.Common(keys, keysOf(m.Record())) {
			return m.Handle(), m
		}
	}
	return "", nil
}

// claim refuses a record with a key of another owner, without naming that owner. A key that the record has proved and
// its present owner has not is taken from the owner.
func (f *Fabric) claim(r peer.Record) error {
	for {
		f.mu.Lock()
		name, by := f.keyOwner(r.ID, keysOf(r)...)
		var loser peer.Record
		if by != nil {
			loser = by.Record()
		}
		f.mu.Unlock()
		if name == "" {
			return nil
		}
		if by != nil && contested(loser, r) {
			if !takes(&loser, r) {
				return fmt.Errorf("%w: %w", pairing.ErrContested, f.sameKey(r, name))
			}
			f.log.Warn("a peer loses a WireGuard key that it has not proved to one that has; it has no tunnel until it has told another", "peer", name, "to", r.Name, "id", r.ID.Short())
			if err := f.save(loser); err != nil {
				return &rpc.Error{Code: "store", Message: fmt.Sprintf("the record of another peer of %s cannot be saved: %v", f.name(), err), Cure: "look at the disk there"}
			}
			continue
		}
		return f.sameKey(r, name)
	}
}

// contested reports whether has proves none of the keys that both claim.
func contested(has, wants peer.Record) bool {
	return !(has.KeyProved && wgkey.Common(keysOf(wants), []wgkey.Public{has.WireGuardKey}) ||
		has.NextKeyProved && wgkey.Common(keysOf(wants), []wgkey.Public{has.NextWireGuardKey}))
}

// takes removes from a record the keys that the other has proved, and reports whether these are all common keys.
func takes(from *peer.Record, to peer.Record) bool {
	var proved []wgkey.Public
	if to.KeyProved {
		proved = append(proved, to.WireGuardKey)
	}
	if to.NextKeyProved {
		proved = append(proved, to.NextWireGuardKey)
	}
	if wgkey.Common(proved, []wgkey.Public{from.WireGuardKey}) {
		from.WireGuardKey = wgkey.Public{}
	}
	if wgkey.Common(proved, []wgkey.Public{from.NextWireGuardKey}) {
		from.NextWireGuardKey = wgkey.Public{}
	}
	return !wgkey.Common(keysOf(*from), keysOf(to))
}

func (f *Fabric) sameKey(r peer.Record, owner string) error {
	f.log.Log(context.Background(), f.newsLevel(), "refused a WireGuard key that another one has", "peer", r.Name, "id", r.ID.Short(), "owner", owner)
	return &rpc.Error{Code: "same-key", Message: fmt.Sprintf("a WireGuard key of %s is that of another cluster that %s has as a peer", r.Name, f.name()),
		Cure: fmt.Sprintf("give it another key (on %s: rivulet rotate-key); if its disk was copied, it needs a state.db of its own (docs/design/peering.md)", r.Name)}
}

// vetted removes duplicate keys from stored records: present keys count before next ones, and older peers before newer
// ones. A peer that loses its present key stays a peer, without a tunnel until it reports another key.
func (f *Fabric) vetted(records []peer.Record) []peer.Record {
	slices.SortFunc(records, byTrust)
	_, public, _, next, _ := f.keys.ours()
	owner := map[wgkey.Public]string{public: "this cluster", next: "this cluster"}
	take := func(r *peer.Record, key *wgkey.Public) {
		if by := owner[*key]; by != "" && !key.IsZero() {
			f.log.Warn("a peer has a WireGuard key that another one has; it counts for nothing until it has told another", "peer", r.Name, "id", r.ID.Short(), "owner", by)
			*key = wgkey.Public{}
		} else {
			owner[*key] = r.Name
		}
	}
	for i := range records {
		take(&records[i], &records[i].WireGuardKey)
	}
	for i := range records {
		take(&records[i], &records[i].NextWireGuardKey)
	}
	return records
}

// byTrust orders records by the time of trust, the oldest first.
func byTrust(a, b peer.Record) int {
	return cmp.Or(a.Trust.At.Compare(b.Trust.At), cmp.Compare(a.ID, b.ID))
}
