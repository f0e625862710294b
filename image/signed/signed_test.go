package signed

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func key(b byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, ed25519.SeedSize))
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

func digest(content []byte) *Digest {
	d := NewDigest()
	d.Write(content)
	return d
}

func TestVerify(t *testing.T) {
	root, other, signer := key(1), key(2), key(3)
	file := []byte("a release")
	good := Sign(signer, Certify(root, public(signer), 4), digest(file))
	roots := []ed25519.PublicKey{public(key(9)), public(root)}
	if err := good.Verify(digest(file), Trust{roots, 4}); err != nil {
		t.Fatal(err)
	}
	change := func(f func(*Signature)) Signature {
		s := good
		s.Certificate.Key = bytes.Clone(s.Certificate.Key)
		f(&s)
		return s
	}
	for _, tc := range []struct {
		name   string
		s      Signature
		file   string
		roots  []ed25519.PublicKey
		oldest int
		words  string
	}{
		{"another file", good, "a Release", roots, 0, "changed"},
		{"longer", good, "a release.", roots, 0, "changed"},
		{"nothing", good, "", roots, 0, "changed"},
		{"unknown root", good, "a release", roots[:1], 0, "vouches"},
		{"no roots", good, "a release", nil, 0, "vouches"},
		{"retired key", good, "a release", roots, 5, "retired"},
		{"a generation that the root did not write", change(func(s *Signature) { s.Certificate.Generation = 5 }), "a release", roots, 5, "vouches"},
		{"a key that the root did not write", change(func(s *Signature) { s.Certificate.Key = public(other) }), "a release", roots, 0, "vouches"},
		{"certified by itself", Sign(signer, Certify(signer, public(signer), 4), digest(file)), "a release", roots, 0, "vouches"},
		{"signed by the wrong key", Sign(other, good.Certificate, digest(file)), "a release", roots, 0, "changed"},
		{"signed by the root, not by the key", Sign(root, good.Certificate, digest(file)), "a release", roots, 0, "changed"},
		{"empty", Signature{Format: 1}, "a release", roots, 0, "vouches"},
	} {
		err := tc.s.Verify(digest([]byte(tc.file)), Trust{tc.roots, tc.oldest})
		if !errors.Is(err, ErrNotOurs) || !strings.Contains(err.Error(), tc.words) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s: %v, want %v, %q and a cure", tc.name, err, ErrNotOurs, tc.words)
		}
	}
}

// No change of a single bit of file or signature is taken.
func TestNoBitMayChange(t *testing.T) {
	root, signer := key(1), key(3)
	rapid.Check(t, func(t *rapid.T) {
		file := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "file")
		s := Sign(signer, Certify(root, public(signer), 1), digest(file))
		parts := map[string][]byte{"file": bytes.Clone(file), "key": bytes.Clone(s.Certificate.Key),
			"vouched": bytes.Clone(s.Certificate.Signature), "signature": bytes.Clone(s.Signature), "root": bytes.Clone(s.Certificate.Root)}
		which := rapid.SampledFrom([]string{"file", "key", "vouched", "signature", "root"}).Draw(t, "which")
		bit := rapid.IntRange(0, 8*len(parts[which])-1).Draw(t, "bit")
		parts[which][bit/8] ^= 1 << (bit % 8)
		s.Certificate.Key, s.Certificate.Signature, s.Certificate.Root, s.Signature = parts["key"], parts["vouched"], parts["root"], parts["signature"]
		if s.Verify(digest(parts["file"]), Trust{Roots: []ed25519.PublicKey{public(root)}}) == nil {
			t.Fatalf("bit %d of %s was changed, and nobody noticed", bit, which)
		}
	})
}

func TestLinked(t *testing.T) {
	defer func(k, g string) { rootKeys, minGeneration = k, g }(rootKeys, minGeneration)
	text := base64.StdEncoding.EncodeToString(public(key(1)))
	rootKeys, minGeneration = "", "1"
	if _, err := Linked(); !errors.Is(err, ErrNoRoots) || !strings.Contains(err.Error(), "; ") {
		t.Errorf("%v, want %v and a cure", err, ErrNoRoots)
	}
	rootKeys, minGeneration = text+","+text, "4"
	if got, err := Linked(); err != nil || len(got.Roots) != 2 || !got.Roots[0].Equal(public(key(1))) || got.Oldest != 4 {
		t.Errorf("%v %v", got, err)
	}
	rootKeys = text + ",AAAA"
	if _, err := Linked(); err == nil || !strings.Contains(err.Error(), "; ") {
		t.Errorf("three bytes are a key? %v", err)
	}
	for _, minGeneration = range []string{"", "0", "-1", "two", "99999999999999999999"} {
		rootKeys = text
		if got, err := Linked(); err == nil || !strings.Contains(err.Error(), "; ") || len(got.Roots) > 0 {
			t.Errorf("%q is a generation? %v %v", minGeneration, got, err)
		}
	}
}

// A device takes no key that was retired before its binary was built, though it has never taken a release.
func TestTheLowestGenerationIsThatOfTheBinaryOrOfTheDevice(t *testing.T) {
	defer func(k, g string) { rootKeys, minGeneration = k, g }(rootKeys, minGeneration)
	root, signer, file := key(1), key(3), []byte("a release")
	rootKeys = base64.StdEncoding.EncodeToString(public(root))
	for _, tc := range []struct {
		linked                  string
		onDevice, ofKey, oldest int
	}{{"1", 0, 1, 1}, {"5", 0, 4, 5}, {"5", 0, 5, 5}, {"5", 7, 6, 7}, {"5", 3, 4, 5}, {"5", 7, 8, 7}} {
		minGeneration = tc.linked
		trust, err := Linked()
		if err != nil {
			t.Fatal(err)
		}
		trust = trust.AtLeast(tc.onDevice)
		err = Sign(signer, Certify(root, public(signer), tc.ofKey), digest(file)).Verify(digest(file), trust)
		if trust.Oldest != tc.oldest || (err == nil) != (tc.ofKey >= tc.oldest) || err != nil && !strings.Contains(err.Error(), "retired") {
			t.Errorf("%+v: %d, %v", tc, trust.Oldest, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	good, _ := json.Marshal(Sign(key(3), Certify(key(1), public(key(3)), 1), digest([]byte("x"))))
	f.Add(good)
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte("minisign"))
	roots := []ed25519.PublicKey{public(key(1))}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Parse(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if s.Verify(digest([]byte("y")), Trust{Roots: roots}) == nil {
			t.Error("a signature of x, or of nothing, is taken for y")
		}
	})
}
