package upgrade

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"rivulet/appliance/lifetime/slots/slotstest"
	"rivulet/image/device/layout"
	"rivulet/image/flash"
	"rivulet/image/signed"
)

// What a bundle says counts only if it is signed, and for this machine.
func TestCheckBundle(t *testing.T) {
	key := func(b byte) ed25519.PrivateKey { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, 32)) }
	root, signer := key(1), key(2)
	trust := signed.Trust{Roots: []ed25519.PublicKey{root.Public().(ed25519.PublicKey)}, Oldest: 2}
	good := slotstest.Bundle(t, "v2", true)
	d := signed.NewDigest()
	d.Write(good)
	sig := signed.Sign(signer, signed.Certify(root, signer.Public().(ed25519.PublicKey), 3), d)
	foreign := slotstest.Pack(t, layout.Manifest{Version: "v2", Kubernetes: "v1.35.0", Arch: "mips"}, [][2]string{{"boot/linux", "k"}, {layout.RootName, "r"}})
	any := func(*signed.Digest) error { return nil }
	ours := func(d *signed.Digest) error { return sig.Verify(d, trust.AtLeast(3)) }
	retired := func(d *signed.Digest) error { return sig.Verify(d, trust.AtLeast(4)) }
	for name, tc := range map[string]struct {
		raw    []byte
		verify func(*signed.Digest) error
		words  string
	}{
		"good":            {good, ours, ""},
		"retired key":     {good, retired, "was retired"},
		"changed":         {slotstest.Bundle(t, "v3", true), ours, "damaged or was changed"},
		"longer":          {append(bytes.Clone(good), 0), ours, "damaged or was changed"},
		"half":            {good[:1024], any, "get it once more"},
		"another machine": {foreign, any, "this one is " + runtime.GOARCH},
	} {
		name2 := filepath.Join(t.TempDir(), "x.bundle")
		if err := os.WriteFile(name2, tc.raw, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name2)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		told := int64(0)
		v, root, err := checkBundle(t.Context(), f, func(_ flash.Stage, done, _ int64) { told = done }, tc.verify)
		if told != int64(len(tc.raw)) && tc.words == "" || told == 0 {
			t.Errorf("%s: nobody was told that %d bytes are checked, but %d", name, len(tc.raw), told)
		}
		switch {
		case tc.words == "" && (err != nil || v.Name != "v2" || len(v.BuildID) != 64 || root != int64(len("root v2")) || v.Kubernetes == ""):
			t.Errorf("%s: %+v %v", name, v, err)
		case tc.words != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.words)):
			t.Errorf("%s: %v; want %q", name, err, tc.words)
		}
	}
}

// Nothing tries a slot that is half written: an image that waited is forgotten before
// the first byte of the next.
func TestImageThatWaitedIsForgottenFirst(t *testing.T) {
	var saved []State
	save := func(s State) error { saved = append(saved, s); return nil }
	old := State{Phase: Idle}.staged(Attempt{Next: version1(1), Image: &Image{From: "a", To: "b"}})
	failed := errors.New("the disk is bad")
	err := stageImage(old, save, func() error {
		if len(saved) != 1 || saved[0].Phase != Idle {
			t.Errorf("filled while %+v is on disk", saved)
		}
		return failed
	}, Attempt{Next: version1(2), Image: &Image{From: "a", To: "b"}})
	if !errors.Is(err, failed) || len(saved) != 1 {
		t.Errorf("%v %+v", err, saved)
	}
}

// A device whose data is in memory would forget an update at the restart that tries it.
func TestNoImageWithoutData(t *testing.T) {
	failed := filepath.Join(t.TempDir(), "data-failed")
	if err := remembers(failed); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(failed, []byte("/dev/sda4 cannot be used\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remembers(failed); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "/dev/sda4 cannot be used; put in another") {
		t.Error(err)
	}
}
