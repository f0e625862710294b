package image

import (
	"archive/tar"
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/device/layout"
	"rivulet/image/signed"
)

// contents are the files of a bundle, each a file on this machine.
type contents struct {
	layout.Manifest
	at  map[string]string
	dir string
}

// unpack opens a bundle whose slot will give us a shell, as disk does for the image.
func unpack(t *testing.T, bundle string) *contents {
	t.Helper()
	c := &contents{at: map[string]string{}, dir: t.TempDir()}
	in, err := os.Open(bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && h.Name == layout.ManifestName {
			err = json.NewDecoder(r).Decode(&c.Manifest)
		} else if err == nil {
			c.at[h.Name] = filepath.Join(c.dir, filepath.Base(h.Name))
			var out *os.File
			if out, err = os.Create(c.at[h.Name]); err == nil {
				_, err = io.Copy(out, r)
				out.Close()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"boot/entry.cfg", "boot/" + layout.EntryFile} {
		raw, err := os.ReadFile(c.at[name])
		if err != nil {
			t.Fatal(err)
		}
		c.put(t, name, []byte(withShell(t, string(raw))))
	}
	return c
}

// put replaces a file.
func (c *contents) put(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(c.at[name], content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// with is a copy in which one file is another.
func (c *contents) with(version, name, path string) *contents {
	n := &contents{Manifest: c.Manifest, at: map[string]string{}, dir: c.dir}
	n.Version = version
	for k, v := range c.at {
		n.at[k] = v
	}
	n.at[name] = path
	return n
}

// pack writes the bundle with a signature of the test's key beside it.
func (c *contents) pack(t *testing.T, to string) {
	t.Helper()
	m := c.Manifest
	m.Files = nil
	for _, f := range c.Files {
		raw, err := os.ReadFile(c.at[f.Name])
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(raw)
		m.Files = append(m.Files, layout.File{Name: f.Name, Size: int64(len(raw)), SHA256: hex.EncodeToString(sum[:])})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	digest := signed.NewDigest()
	w := tar.NewWriter(io.MultiWriter(out, digest))
	add := func(name string, content []byte) {
		err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o644, Format: tar.FormatUSTAR})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add(layout.ManifestName, text)
	for _, f := range m.Files {
		raw, err := os.ReadFile(c.at[f.Name])
		if err != nil {
			t.Fatal(err)
		}
		add(f.Name, raw)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	// The keys whose public half OPS_KEY of the Makefile is.
	root, signing := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	sig, err := json.Marshal(signed.Sign(signing, signed.Certify(root, signing.Public().(ed25519.PublicKey), 1), digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to+".sig", sig, 0o600); err != nil {
		t.Fatal(err)
	}
}

// bare is a root that can be mounted and has nothing in it.
func bare(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "root/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	tool(t, "mksquashfs", filepath.Join(dir, "root"), filepath.Join(dir, "bare"), "-quiet", "-no-progress", "-all-root")
	return filepath.Join(dir, "bare")
}

// stuck is a root whose rivulet judges itself as the real one does, and is not up to
// what it promises: test/suites/image/stuck.
func stuck(t *testing.T, c *contents) string {
	t.Helper()
	dir := t.TempDir()
	tool(t, "unsquashfs", "-q", "-n", "-d", filepath.Join(dir, "root"), c.at[layout.RootName])
	build := exec.Command("go", "build", "-tags", "sqlite_omit_load_extension netgo osusergo", "-ldflags",
		"-s -w -extldflags -static -X rivulet/appliance/version.Version=v3.0.0-stuck", "-o", filepath.Join(dir, "root/usr/local/bin/rivulet"), "./stuck")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	tool(t, "mksquashfs", filepath.Join(dir, "root"), filepath.Join(dir, "stuck"), "-quiet", "-no-progress", "-all-root", "-comp", "zstd", "-Xcompression-level", "1")
	if err := os.RemoveAll(filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "stuck")
}

// stick is a USB stick with bundles: good, which is what its name says; hollow, with an
// empty root; panic, without an initrd, too; stuck, whose rivulet is not up to it.
func stick(t *testing.T, bundle string) string {
	t.Helper()
	path := filepath.Join(kept(t), "stick.img")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	good := unpack(t, bundle)
	good.pack(t, in("good"))
	hollow := good.with("v3.0.0-dark", layout.RootName, bare(t))
	hollow.pack(t, in("hollow"))
	nothing := filepath.Join(t.TempDir(), "nothing")
	if err := os.WriteFile(nothing, []byte(strings.Repeat("no initrd\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	hollow.with("v3.0.0-dark", "boot/initrd", nothing).pack(t, in("panic"))
	good.with("v3.0.0-stuck", layout.RootName, stuck(t, good)).pack(t, in("stuck"))
	tool(t, "truncate", "-s", "1G", path+".new")
	tool(t, "mkfs.vfat", "-F", "32", "-n", "STICK", path+".new")
	files, err := filepath.Glob(in("*"))
	if err != nil {
		t.Fatal(err)
	}
	tool(t, "mcopy", append(append([]string{"-i", path + ".new"}, files...), "::/")...)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// kept is the folder of sticks and disks: RIVULET_UPDATE_KEEP, for a test that is to go
// on where an earlier one ended, or one of the test's own.
func kept(t *testing.T) string {
	if dir := os.Getenv("RIVULET_UPDATE_KEEP"); dir != "" {
		return dir
	}
	return t.TempDir()
}

// keptDisk is a disk with the image, or the one that an earlier test left.
func keptDisk(t *testing.T, packed, name string) string {
	t.Helper()
	path := filepath.Join(kept(t), name+".img")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.Rename(disk(t, packed, "4G"), path); err != nil {
		t.Fatalf("%v; %s has to be on the file system of %s", err, path, os.TempDir())
	}
	return path
}

func withShell(t *testing.T, text string) string {
	t.Helper()
	out := strings.Replace(text, "quiet systemd.show_status=auto", shell, 1)
	if !strings.Contains(out, "debug_shell") {
		t.Fatalf("the kernel's command line is not what it was: %s", text)
	}
	return out
}
