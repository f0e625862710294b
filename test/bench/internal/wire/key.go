package wire

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// key is a WireGuard key.
type key struct{ private *ecdh.PrivateKey }

func newKey() (key, error) {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return key{}, fmt.Errorf("wire: %w", err)
	}
	return key{k}, nil
}

func (k key) privateBase64() string { return base64.StdEncoding.EncodeToString(k.private.Bytes()) }
func (k key) publicBase64() string {
	return base64.StdEncoding.EncodeToString(k.private.PublicKey().Bytes())
}
func (k key) privateHex() string { return hex.EncodeToString(k.private.Bytes()) }
func (k key) publicHex() string  { return hex.EncodeToString(k.private.PublicKey().Bytes()) }
