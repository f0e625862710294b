package wgkey

import (
	"bytes"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func text(raw []byte) string { return base64.StdEncoding.EncodeToString(raw) }

func point(t *testing.T, s string) string {
	t.Helper()
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 32 {
		t.Fatal(s)
	}
	return text(raw)
}

// What a neighbour may send instead of a key.
func TestBadKeysAreRefused(t *testing.T) {
	private, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	good := private.Public()
	if got, err := Parse(good.String()); err != nil || got != good || good.IsZero() {
		t.Fatalf("%v, %v", got, err)
	}
	raw, high := good.Bytes(), good.Bytes()
	high[31] |= 0x80
	spelling := []byte(good.String()) // 44 characters of which the last one before = has two bits to spare
	spelling[42] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", spelling[42])|1]
	for name, s := range map[string]string{
		"nothing":             "",
		"no base64":           "?",
		"too short":           text(raw[:31]),
		"too long":            text(append(raw[:], 0)),
		"a line break":        good.String()[:20] + "\n" + good.String()[20:],
		"another spelling":    string(spelling),
		"no padding":          strings.TrimRight(good.String(), "="),
		"another alphabet":    base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xfb, 0xff}, 16)),
		"the highest bit":     text(high[:]),
		"zero":                text(make([]byte, 32)),
		"one":                 point(t, "0100000000000000000000000000000000000000000000000000000000000000"),
		"order 8":             point(t, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
		"order 8, the other":  point(t, "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
		"-1":                  point(t, "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"zero, another form":  point(t, "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"one, another form":   point(t, "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"the largest number":  point(t, "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
		"zero, highest bit":   point(t, "0000000000000000000000000000000000000000000000000000000000000080"),
		"order 8, with a bit": point(t, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b880"),
	} {
		if got, err := Parse(s); err == nil || !got.IsZero() {
			t.Errorf("%s: %q is taken as %s", name, s, got)
		}
		var p Public
		if blob, _ := json.Marshal(s); s != "" && json.Unmarshal(blob, &p) == nil {
			t.Errorf("%s: %q is taken from JSON", name, s)
		}
	}
	for _, s := range []string{"", "?", "AAAA", text(make([]byte, 32)), text(raw[:]) + "\n"} {
		if _, err := ParsePrivate(s); err == nil {
			t.Errorf("%q is taken as a private key", s)
		}
	}
}

// All points with which a secret is zero are refused, in every form, and no other one:
// the list is held against the curve itself.
func TestWeakIsWhatTheCurveSays(t *testing.T) {
	scalar := bytes.Repeat([]byte{0x5a}, 32)
	private, err := ecdh.X25519().NewPrivateKey(scalar)
	if err != nil {
		t.Fatal(err)
	}
	zero := func(p Public) bool {
		public, err := ecdh.X25519().NewPublicKey(p.raw[:])
		if err != nil {
			t.Fatal(err)
		}
		_, err = private.ECDH(public)
		return err != nil
	}
	for p := range weak {
		if !zero(p) || !p.reduced() {
			t.Errorf("%x is not weak, or not canonical", p.raw)
		}
	}
	if len(weak) != 5 {
		t.Errorf("%d", len(weak))
	}
	rapid.Check(t, func(t *rapid.T) {
		var p Public
		copy(p.raw[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "point"))
		if rapid.Bool().Draw(t, "at the edge") {
			for i := range p.raw {
				p.raw[i] = 0xff
			}
			p.raw[31] = 0x7f
			binary.LittleEndian.PutUint16(p.raw[:], rapid.Uint16Min(0xff00).Draw(t, "low"))
		}
		got, err := Parse(text(p.raw[:]))
		want := p.raw[31] < 0x80 && !zero(p) && p.reduced()
		if (err == nil) != want || err == nil && got != p {
			t.Fatalf("%x: %v", p.raw, err)
		}
	})
}

// There is one form of a number: 2^255-19 and what is above it are second ones.
func TestReduced(t *testing.T) {
	for low := range 256 {
		p := fromHex("00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f")
		p.raw[0] = byte(low)
		if got, want := p.reduced(), low < 0xed; got != want {
			t.Errorf("%02x: %v", low, got)
		}
		p.raw[17] = 0xfe
		if !p.reduced() {
			t.Errorf("%02x with a lower middle", low)
		}
		p.raw[31] = 0x80
		if p.reduced() {
			t.Errorf("%02x with the highest bit", low)
		}
	}
}

func TestPrivateKeysAreNotPrinted(t *testing.T) {
	k, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	holder := struct{ Key Private }{k}
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%+v", holder), fmt.Sprintf("%#v", holder), k.String()} {
		if strings.Contains(s, k.Text()) || strings.Contains(s, fmt.Sprint(k.raw[0], " ", k.raw[1])) {
			t.Error("it is printed")
		}
	}
	blob, err := json.Marshal(holder)
	var back struct{ Key Private }
	if err != nil || json.Unmarshal(blob, &back) != nil || back.Key != k || back.Key.Public() != k.Public() {
		t.Errorf("%s does not come back: %v", blob, err)
	}
	if !(Private{}).Public().IsZero() || (Public{}).String() != "" || (Private{}).Text() != "" {
		t.Error("none is something")
	}
}
