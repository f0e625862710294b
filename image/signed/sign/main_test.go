package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/signed"
)

// A release as docs/design/keys.md and the Makefile make it: two keys, a certificate, and
// signatures that a device believes, of a file as it is and of one that is packed.
func TestARelease(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	says := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := run(args, &out); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(out.String())
	}
	put := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(in(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("passphrase", []byte("only of this test"))
	t.Setenv(passphraseFile, in("passphrase"))
	root := says("key", in("root.key"))
	put("signing.cert", []byte(says("certify", "-root", in("root.key"), "-key", says("key", in("signing.key")), "-generation", "3")))

	content := bytes.Repeat([]byte("an image of a disk "), 1<<16)
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(content)
	z.Close()
	put("a.bundle", content)
	put("b.img.zst", packed.Bytes())
	says("file", "-key", in("signing.key"), "-certificate", in("signing.cert"), in("a.bundle"), in("b.img.zst"))

	key, err := base64.StdEncoding.DecodeString(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.bundle", "b.img.zst", "b.img"} {
		s, err := signed.Beside(in(name))
		if err != nil {
			t.Fatal(err)
		}
		d := signed.NewDigest()
		d.Write(content)
		if err := s.Verify(d, signed.Trust{Roots: []ed25519.PublicKey{key}, Oldest: 3}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Who has another key than the one that is vouched for signs nothing, and hears of it before a build.
	says("fits", "-key", in("signing.key"), "-certificate", in("signing.cert"))
	says("key", in("other.key"))
	for _, verb := range [][]string{{"file", in("a.bundle")}, {"fits"}} {
		if err := run(append([]string{verb[0], "-key", in("other.key"), "-certificate", in("signing.cert")}, verb[1:]...), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "certificate of another key") {
			t.Errorf("%s, another key: %v", verb, err)
		}
	}
	put("passphrase", []byte("another one, as long"))
	if err := run([]string{"fits", "-key", in("signing.key"), "-certificate", in("signing.cert")}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "the passphrase does not fit") {
		t.Errorf("a wrong passphrase: %v", err)
	}
	put("passphrase", []byte("only of this test"))
	put("c.zst", []byte("not packed"))
	if err := run([]string{"file", "-key", in("signing.key"), "-certificate", in("signing.cert"), in("c.zst")}, &bytes.Buffer{}); err == nil {
		t.Error("a damaged file was signed")
	}
}
