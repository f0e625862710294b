package keyring

import (
	"fmt"
	"log/slog"
	"slices"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// A WireGuard key, present or next, has one owner: this cluster, the gateway of a foreign one, or one peer. Traffic for
// the owner's prefix is encrypted with it, so another claimant would receive that traffic. The first claimant keeps the
// key, unless it has not proved possession (pairing/possession.go) and a later one has.

// KeysOf are the keys that a record claims.
func KeysOf(r peer.Record) []wgkey.Public {
	return []wgkey.Public{r.WireGuardKey, r.NextWireGuardKey}
}

// Owners knows who has which key.
type Owners interface {
	// KeyOwner names the other owner of one of the keys; empty if there is none. It has a record if it is a peer.
	KeyOwner(id peer.ID, keys ...wgkey.Public) (name string, by *peer.Record)
	// Save stores the record of a peer that has lost a key.
	Save(peer.Record) error
}

// Claim refuses a record with a key of another owner: it returns the owner's name, and an error without it. A key that
// the record has proved and its present owner has not is taken from the owner. Here is this cluster's name.
func Claim(r peer.Record, here string, owners Owners, log *slog.Logger) (owner string, err error) {
	for {
		name, by := owners.KeyOwner(r.ID, KeysOf(r)...)
		if name == "" {
			return "", nil
		}
		if by == nil || !contested(*by, r) {
			return name, sameKey(r, here)
		}
		if !takes(by, r) {
			return name, fmt.Errorf("%w: %w", pairing.ErrContested, sameKey(r, here))
		}
		log.Warn("a peer loses a WireGuard key that it has not proved to one that has; it has no tunnel until it has told another", "peer", name, "to", r.Name, "id", r.ID.Short())
		if err := owners.Save(*by); err != nil {
			return "", &rpc.Error{Code: "store", Message: fmt.Sprintf("the record of another peer of %s cannot be saved: %v", here, err), Cure: "look at the disk there"}
		}
	}
}

// contested reports whether has proves none of the keys that both claim.
func contested(has, wants peer.Record) bool {
	return !(has.KeyProved && wgkey.Common(KeysOf(wants), []wgkey.Public{has.WireGuardKey}) ||
		has.NextKeyProved && wgkey.Common(KeysOf(wants), []wgkey.Public{has.NextWireGuardKey}))
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
	return !wgkey.Common(KeysOf(*from), KeysOf(to))
}

func sameKey(r peer.Record, here string) error {
	return &rpc.Error{Code: "same-key", Message: fmt.Sprintf("a WireGuard key of %s is that of another cluster that %s has as a peer", r.Name, here),
		Cure: fmt.Sprintf("give it another key (on %s: rivulet rotate-key); if its disk was copied, it needs a state.db of its own (see: rivulet docs peering)", r.Name)}
}

// Vetted removes duplicate keys from stored records, in the order of trust: present keys count before next ones, and
// older peers before newer ones. A peer that loses its present key stays a peer, without a tunnel until it reports
// another key.
func Vetted(records []peer.Record, ours Keys, log *slog.Logger) []peer.Record {
	slices.SortFunc(records, peer.ByTrust)
	owner := map[wgkey.Public]string{ours.Public: "this cluster", ours.NextPublic: "this cluster"}
	take := func(r *peer.Record, key *wgkey.Public) {
		if by, taken := owner[*key]; taken && !key.IsZero() {
			log.Warn("a peer has a WireGuard key that another one has; it counts for nothing until it has told another", "peer", r.Name, "id", r.ID.Short(), "owner", by)
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
