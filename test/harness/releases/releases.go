// Package releases signs programs as releases that the binaries of `make ops-binaries` take, and makes ones that go
// wrong. It writes into the folder that it is given, which devices of a lab see below /host.
package releases

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"rivulet/appliance/version"
	"rivulet/image/signed"
	"rivulet/test/harness/tree"
)

// Keys: those of Root are trusted by the binaries, see OPS_KEY in the Makefile.
const (
	Root    = 1
	signing = 2
	Strange = 3
)

// Binary is the path of one of the files that make ops-binaries makes.
func Binary(name string) string { return tree.Path("bin", "ops", name) }

func key(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

// Sign puts a copy of the file from into dir, changed by change if there is one, with a signature of what it was before
// the change. It returns the copy's name as devices see it.
func Sign(t *testing.T, dir, from, name string, root byte, change func([]byte) []byte) (seenByDevices string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	digest := signed.NewDigest()
	digest.Write(raw)
	sig, err := json.Marshal(signed.Sign(key(signing), signed.Certify(key(root), key(signing).Public().(ed25519.PublicKey), 1), digest))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		raw = change(raw)
	}
	path := filepath.Join(dir, name)
	for file, content := range map[string][]byte{path: raw, path + ".sig": sig} {
		if err := os.WriteFile(file, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return "/host" + path
}

// Faulty builds a release that goes wrong in a way (hang, or the code that it exits with), and signs it into dir.
func Faulty(t *testing.T, dir, name, way, kubernetes string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "rivulet")
	build := exec.Command("go", "build", "-o", binary, "-ldflags",
		fmt.Sprintf("-X main.name=%s -X main.way=%s -X main.kubernetes=%s", name, way, kubernetes), "rivulet/test/harness/releases/faulty")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return Sign(t, dir, binary, name, Root, nil)
}

// Kubernetes is the version of Kubernetes in a binary of this tree.
func Kubernetes(t *testing.T, binary string) string {
	t.Helper()
	cmd := exec.Command(binary, "version", "-o", "json")
	cmd.Args[0] = "rivulet"
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var parts []version.Part
	if err := json.Unmarshal(raw, &parts); err != nil {
		t.Fatal(err)
	}
	return version.KubernetesOf(parts)
}
