package pairing

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"

	"golang.org/x/crypto/scrypt"

	"rivulet/fabric/peer"
)

// GroupKey is derived from a group's secret.
type GroupKey [32]byte

// NewGroupKey stretches the secret, so that each guess against a proof costs about 0.1 s of a PC and 32 MiB. It is
// called once for a secret. There is no salt that both sides have beforehand, so a list of words could be stretched in
// advance: for that reason the secret has at least 16 characters.
func NewGroupKey(secret string) GroupKey {
	key, err := scrypt.Key([]byte(secret), []byte("rivulet group secret v1"), 1<<15, 8, 1, 32)
	if err != nil {
		panic(err) // the parameters are constants
	}
	return GroupKey(key)
}

// Room is the group's room at a broker. It tells the broker no more than a proof does: each guess of the secret costs a
// stretching, and the rooms at two brokers are not alike.
func (k GroupKey) Room(broker peer.ID) string {
	mac := hmac.New(sha256.New, k[:])
	mac.Write([]byte("rivulet broker room v1 " + broker))
	return hex.EncodeToString(mac.Sum(nil))
}

// The two sides of a connection; the proof of one is not valid for the other.
const (
	roleStarter   = "starter"
	roleResponder = "responder"
)

// prove proves possession of the key to the cluster to, for the connection with this binding only.
func (k GroupKey) prove(role string, binding []byte, from, to peer.ID) []byte {
	mac := hmac.New(sha256.New, k[:])
	for _, part := range []string{"rivulet group proof v1", role, string(from), string(to), string(binding)} {
		mac.Write([]byte{byte(len(part) >> 8), byte(len(part))})
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)
}

// verify checks a proof. Without a key there is no result.
func (k *GroupKey) verify(proof []byte, role string, binding []byte, from, to peer.ID) Proved {
	switch {
	case k == nil || len(proof) == 0:
		return NoProof
	case len(binding) > 0 && hmac.Equal(proof, k.prove(role, binding, from, to)):
		return RightProof
	}
	return WrongProof
}
