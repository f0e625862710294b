// Package slotstest makes update bundles for tests. It reads and writes nothing.
package slotstest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"runtime"

	"rivulet/image/device/layout"
)

// T is the common part of testing and rapid.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Bundle is a bundle of a version, which its files contain; on a PC it has an entry for systemd-boot.
func Bundle(t T, version string, pc bool) []byte {
	t.Helper()
	files := [][2]string{{"boot/linux", "kernel " + version}, {"boot/initrd", "initrd " + version}, {"boot/cmdline.txt", "rivulet.slot=@SLOT@\n"}}
	if pc {
		files = append(files, [2]string{"boot/" + layout.EntryFile, "title @SLOT@\nversion @VERSION@\nsort-key rivulet\nlinux /@SLOT@/linux\n"})
	}
	return Pack(t, layout.Manifest{Version: version, Kubernetes: "v1.35.0+k3s1", Arch: runtime.GOARCH}, append(files, [2]string{layout.RootName, "root " + version}))
}

// Pack makes a bundle of files; it fills the manifest's list.
func Pack(t T, m layout.Manifest, files [][2]string) []byte {
	t.Helper()
	for _, f := range files {
		sum := sha256.Sum256([]byte(f[1]))
		m.Files = append(m.Files, layout.File{Name: f[0], Size: int64(len(f[1])), SHA256: hex.EncodeToString(sum[:])})
	}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range append([][2]string{{layout.ManifestName, string(raw)}}, files...) {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Size: int64(len(f[1])), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
