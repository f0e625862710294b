package pairing

import (
	"crypto/hmac"
	"crypto/sha256"

	"golang.org/x/crypto/scrypt"

	"rivulet/fabric/peer"
)

// GroupKey is what is made of a group's secret.
type GroupKey [32]byte

// NewGroupKey stretches the secret, so that trying words against a proof costs as
// much for each: about 0.1 s of a PC and 32 MiB. It is done once for a secret. There is
// nothing to salt it with that both sides know beforehand, so a list of words could be
// stretched in advance: the secret has at least 16 characters for that.
func NewGroupKey(secret string) GroupKey {
	key, err := scrypt.Key([]byte(secret), []byte("rivulet group secret v1"), 1<<15, 8, 1, 32)
	if err != nil {
		panic(err) // the parameters are constants
	}
	return GroupKey(key)
}

// The two sides of a connection; a proof of one is none of the other.
const (
	roleStarter   = "starter"
	roleResponder = "responder"
)

// prove shows knowledge of the key to the cluster to, for the connection with this
// binding and no other.
func (k GroupKey) prove(role string, binding []byte, from, to peer.ID) []byte {
	mac := hmac.New(sha256.New, k[:])
	for _, part := range []string{"rivulet group proof v1", role, string(from), string(to), string(binding)} {
		mac.Write([]byte{byte(len(part) >> 8), byte(len(part))})
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)
}

// verify says what a proof is worth. Without a key of our own nothing can be said.
func (k *GroupKey) verify(proof []byte, role string, binding []byte, from, to peer.ID) Proved {
	switch {
	case k == nil || len(proof) == 0:
		return NoProof
	case len(binding) > 0 && hmac.Equal(proof, k.prove(role, binding, from, to)):
		return RightProof
	}
	return WrongProof
}
