// Package wgkey has the keys of WireGuard as types that are always valid: text is parsed once, strictly, where it
// arrives, and a value is either a usable key or the zero value, no key. Two values are equal exactly if the keys are.
// It is a leaf: it reads and writes nothing and imports nothing of Rivulet.
package wgkey

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// Public is a Curve25519 public key, or none.
type Public struct{ raw [32]byte }

// Private is a Curve25519 private key, or none. It is never printed.
type Private struct{ raw [32]byte }

// weak are the points of low order: the secret shared with one of them is zero, whatever the private key. All other
// encodings of them are not canonical.
var weak = map[Public]bool{
	fromHex("0000000000000000000000000000000000000000000000000000000000000000"): true,
	fromHex("0100000000000000000000000000000000000000000000000000000000000000"): true,
	fromHex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"): true,
	fromHex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"): true,
	fromHex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"): true,
}

func fromHex(s string) (p Public) {
	raw, _ := hex.DecodeString(s)
	copy(p.raw[:], raw)
	return p
}

// Parse reads a public key: 32 bytes in canonical base64, the canonical form of a point
// that is not of low order.
func Parse(s string) (Public, error) {
	raw, err := decode(s)
	if err != nil {
		return Public{}, err
	}
	p := Public{raw}
	switch {
	case !p.reduced():
		return Public{}, errors.New("the WireGuard key is another form of a key")
	case weak[p]:
		return Public{}, errors.New("the WireGuard key is of low order, with which no secret can be shared")
	}
	return p, nil
}

// reduced reports whether the number is below 2^255-19: any other is a second form of a smaller one.
func (p Public) reduced() bool {
	if p.raw[31] != 0x7f || p.raw[0] < 0xed {
		return p.raw[31] < 0x80
	}
	for _, b := range p.raw[1:31] {
		if b != 0xff {
			return true
		}
	}
	return false
}

// ParsePrivate reads a private key: 32 bytes in canonical base64.
func ParsePrivate(s string) (Private, error) {
	raw, err := decode(s)
	if err != nil {
		return Private{}, err
	}
	if raw == [32]byte{} {
		return Private{}, errors.New("the WireGuard key is empty")
	}
	return Private{raw}, nil
}

// decode accepts the encoder's form only: the decoder by itself accepts line breaks and any padding bits.
func decode(s string) (raw [32]byte, err error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != len(raw) || base64.StdEncoding.EncodeToString(b) != s {
		return raw, errors.New("the WireGuard key is not 32 bytes in base64")
	}
	return [32]byte(b), nil
}

func Generate() (Private, error) {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return Private{}, fmt.Errorf("wgkey: %w", err)
	}
	return Private{[32]byte(k.Bytes())}, nil
}

func (k Private) Public() Public {
	if k.IsZero() {
		return Public{}
	}
	key, err := ecdh.X25519().NewPrivateKey(k.raw[:])
	if err != nil {
		return Public{} // 32 bytes are always valid
	}
	return Public{[32]byte(key.PublicKey().Bytes())}
}

// Shared is the secret shared by the owners of the two keys; nil if either is zero.
func (k Private) Shared(p Public) []byte {
	key, err := ecdh.X25519().NewPrivateKey(k.raw[:])
	if k.IsZero() || p.IsZero() || err != nil {
		return nil
	}
	public, err := ecdh.X25519().NewPublicKey(p.raw[:])
	if err != nil {
		return nil
	}
	secret, err := key.ECDH(public)
	if err != nil {
		return nil // of low order, which a Public is not
	}
	return secret
}

func (p Public) IsZero() bool { return p == Public{} }

func (k Private) IsZero() bool { return k == Private{} }

func (p Public) Bytes() [32]byte { return p.raw }

func (k Private) Bytes() [32]byte { return k.raw }

// Common reports whether two lists have a key in common; zero values do not count.
func Common(a, b []Public) bool {
	return slices.ContainsFunc(a, func(k Public) bool { return !k.IsZero() && slices.Contains(b, k) })
}

// String is the key in base64, empty for zero.
func (p Public) String() string {
	if p.IsZero() {
		return ""
	}
	return base64.StdEncoding.EncodeToString(p.raw[:])
}

// String hides the key.
func (k Private) String() string { return "(private key)" }

func (k Private) GoString() string { return k.String() }

// Text is the key in base64, for storage; empty for zero.
func (k Private) Text() string {
	if k.IsZero() {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k.raw[:])
}

// MarshalText writes what UnmarshalText reads.
func (p Public) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// MarshalText writes what UnmarshalText reads.
func (k Private) MarshalText() ([]byte, error) { return []byte(k.Text()), nil }

// UnmarshalText reads a key, or zero from nothing.
func (p *Public) UnmarshalText(text []byte) (err error) {
	if *p = (Public{}); len(text) > 0 {
		*p, err = Parse(string(text))
	}
	return err
}

// UnmarshalText reads a key, or zero from nothing.
func (k *Private) UnmarshalText(text []byte) (err error) {
	if *k = (Private{}); len(text) > 0 {
		*k, err = ParsePrivate(string(text))
	}
	return err
}
