package fabric

import (
	"cmp"
	"context"
	"time"

	"rivulet/fabric/keyring"
	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// What the keyring needs of the other clusters.

// Rotate changes the WireGuard key now. If ctx ends before all is done the rotation continues.
func (f *Fabric) Rotate(ctx context.Context) error { return f.keys.Rotate(ctx) }

// keysChanged configures the tunnel with the present keys, and sends them to all peers.
func (f *Fabric) keysChanged() {
	f.plane.kick()
	f.brokers.Again()
	f.Refresh()
}

// Claim refuses a record with a key of another owner (keyring.Claim).
func (a *admission) Claim(r peer.Record) error {
	owner, err := keyring.Claim(r, a.settings.name.get(), a, a.log)
	if owner != "" {
		a.members.mu.Lock()
		level := a.members.newsLevel()
		a.members.mu.Unlock()
		a.log.Log(context.Background(), level, "refused a WireGuard key that another one has", "peer", r.Name, "id", r.ID.Short(), "owner", owner)
	}
	return err
}

// KeyOwner names the other owner of one of the keys; empty if there is none. It has a record if it is a peer.
func (a *admission) KeyOwner(id peer.ID, keys ...wgkey.Public) (name string, by *peer.Record) {
	if wgkey.Common(keys, a.keys.Now().Both()) {
		return "this cluster", nil
	}
	if name := a.gateways.keyOwner(keys...); name != "" {
		return "the gateway " + name, nil
	}
	for _, r := range a.members.records() {
		if r.ID != id && wgkey.Common(keys, keyring.KeysOf(r)) {
			return cmp.Or(r.Name, r.ID.Short()), &r
		}
	}
	return "", nil
}

// awaitKey waits until every connected peer has the next key, or ctx ends.
func (s *members) awaitKey(ctx context.Context, next wgkey.Public) {
	changed, stop := s.Changed()
	defer stop()
	for {
		s.mu.Lock()
		waits := 0
		for _, m := range s.peers() {
			if m.State() == peer.Connected && m.KeyTaken() != next {
				waits++
			}
		}
		s.mu.Unlock()
		if waits == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(s.timing.Probe):
		}
	}
}
