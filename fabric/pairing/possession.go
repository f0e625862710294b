package pairing

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"

	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// Anybody can send the public WireGuard key of another cluster. A proof of possession is made with the shared secret of
// the owner's key and the receiver's key, so that only these two can make it, and over both IDs, so that it is valid
// for these two clusters only. The starter of a first exchange has the receiver's key only after the answer, so its
// second message has the proof.

// ErrContested refuses a key that another cluster has claimed without a proof: a proof takes the key from that cluster.
var ErrContested = errors.New("pairing: another cluster has claimed the WireGuard key, and neither has proved it")

// possession is from's proof towards to that it owns the key claimed, made with the secret shared with the key theirs
// of to.
func possession(secret []byte, claimed, theirs wgkey.Public, from, to peer.ID) []byte {
	if secret == nil {
		return nil
	}
	mac := hmac.New(sha256.New, secret)
	claimedRaw, theirsRaw := claimed.Bytes(), theirs.Bytes()
	for _, part := range []string{"rivulet key proof v1", string(from), string(to), string(claimedRaw[:]), string(theirsRaw[:])} {
		mac.Write([]byte{byte(len(part) >> 8), byte(len(part))})
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)
}

// Possession is from's proof towards to, the owner of the key theirs, that it owns its key.
func Possession(own wgkey.Private, theirs wgkey.Public, from, to peer.ID) []byte {
	return possession(own.Shared(theirs), own.Public(), theirs, from, to)
}

// Possesses reports whether the proof, made for the owner to of the key own, shows that key is from's.
func Possesses(own wgkey.Private, key wgkey.Public, proof []byte, from, to peer.ID) bool {
	want := possession(own.Shared(key), key, own.Public(), from, to)
	return want != nil && hmac.Equal(proof, want)
}

// ours are this cluster's private keys, none if nothing is proved.
func (s Self) ours() []wgkey.Private {
	if s.Private.IsZero() {
		return nil
	}
	return []wgkey.Private{s.Private, s.NextPrivate}
}

// provePossession adds to a message the proofs for the owner of the key theirs.
func (s Self) provePossession(m *Message, to peer.ID, theirs wgkey.Public) {
	for _, own := range s.ours() {
		m.Proves = true
		switch public := own.Public(); {
		case public.IsZero():
		case public == m.WireGuardKey:
			m.KeyProof = possession(own.Shared(theirs), public, theirs, m.ID, to)
		case public == m.NextWireGuardKey:
			m.NextKeyProof = possession(own.Shared(theirs), public, theirs, m.ID, to)
		}
	}
}

// possesses reports whether a sender's proof shows that the key is its own. It may be made for this cluster's present
// or next key.
func (s Self) possesses(from peer.ID, key wgkey.Public, proof []byte) bool {
	if len(proof) == 0 || key.IsZero() {
		return false
	}
	for _, own := range s.ours() {
		if Possesses(own, key, proof, from, s.ID) {
			return true
		}
	}
	return false
}
