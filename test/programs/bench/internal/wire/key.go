package wire

import (
	"encoding/hex"

	"rivulet/fabric/wgkey"
)

// key is a WireGuard key.
type key struct{ wgkey.Private }

func newKey() (key, error) {
	k, err := wgkey.Generate()
	return key{k}, err
}

func (k key) privateHex() string { return toHex(k.Bytes()) }
func (k key) publicHex() string  { return toHex(k.Public().Bytes()) }

func toHex(raw [32]byte) string { return hex.EncodeToString(raw[:]) }
