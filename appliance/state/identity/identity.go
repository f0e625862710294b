// Package identity creates and stores the identity of a cluster: its Ed25519 key and the WireGuard key. Both are
// created at the first start and stored before use; losing them means becoming another cluster. The fabric changes the
// WireGuard key from time to time, the other never changes.
package identity

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"rivulet/fabric/peer"
)

// Store stores one blob durably.
type Store interface {
	Identity() ([]byte, error) // nil if there is none
	PutIdentity([]byte) error
}

// Identity is the identity of the cluster.
type Identity struct {
	Key ed25519.PrivateKey
	// WireGuard is the Curve25519 private key, base64; Next is its successor during a change, otherwise empty. Changed
	// is the creation time of WireGuard, zero if unknown.
	WireGuard, Next string
	Changed         time.Time
}

type stored struct {
	Seed      []byte    `json:"seed"`
	WireGuard string    `json:"wireguard"`
	Next      string    `json:"nextWireguard,omitempty"`
	Changed   time.Time `json:"wireguardChanged,omitzero"`
}

// SaveWireGuard stores other WireGuard keys with the same identity. It returns after they are durable.
func SaveWireGuard(s Store, current, next string, changed time.Time) error {
	id, err := Load(s)
	if err != nil {
		return err
	}
	blob, err := json.Marshal(stored{Seed: id.Key.Seed(), WireGuard: current, Next: next, Changed: changed})
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return s.PutIdentity(blob)
}

// Load returns the cluster's identity, and creates it if there is none.
func Load(s Store) (Identity, error) {
	blob, err := s.Identity()
	if err != nil {
		return Identity{}, err
	}
	if blob != nil {
		return decode(blob)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("identity: %w", err)
	}
	wg, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("identity: %w", err)
	}
	id := Identity{Key: key, WireGuard: base64.StdEncoding.EncodeToString(wg.Bytes())}
	blob, err = json.Marshal(stored{Seed: key.Seed(), WireGuard: id.WireGuard})
	if err != nil {
		return Identity{}, fmt.Errorf("identity: %w", err)
	}
	if err := s.PutIdentity(blob); err != nil {
		return Identity{}, err
	}
	return id, nil
}

func decode(blob []byte) (Identity, error) {
	var st stored
	err := json.Unmarshal(blob, &st)
	if err == nil && len(st.Seed) != ed25519.SeedSize {
		err = errors.New("wrong key size")
	}
	if err == nil {
		_, err = base64.StdEncoding.DecodeString(st.WireGuard)
	}
	if err == nil {
		_, err = base64.StdEncoding.DecodeString(st.Next)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identity: the stored key is unreadable: %w; restore state.db from a backup, "+
			"or move it away to become a new cluster that has to be paired again", err)
	}
	return Identity{Key: ed25519.NewKeyFromSeed(st.Seed), WireGuard: st.WireGuard, Next: st.Next, Changed: st.Changed}, nil
}

// ID returns the cluster's ID.
func (i Identity) ID() peer.ID { return peer.IDFromKey(i.Key.Public().(ed25519.PublicKey)) }

// NodeAddress returns the permanent address of the cluster's first node: x.y of the range, derived from the ID. It
// never leaves the machine, so two devices may have the same one.
func NodeAddress(id peer.ID, nodes netip.Prefix) netip.Addr {
	// Two base32 characters have ten bits; four give the required 16.
	h := uint32(0)
	for _, c := range []byte(id)[:4] {
		v := uint32(c - 'a')
		if c >= '2' && c <= '7' {
			v = uint32(c-'2') + 26
		}
		h = h<<5 | v
	}
	x, y := byte(h>>8), byte(h)
	if y == 0 || y == 255 { // some tools treat it as a network or broadcast address
		y = 1
	}
	a := nodes.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], x, y})
}
