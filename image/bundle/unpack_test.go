package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// made packs a small bundle whose one program prints text.
func made(t *testing.T, text string, change ...func(*Manifest)) source {
	t.Helper()
	program := []byte("#!/bin/sh\necho " + text + "\n")
	sum := sha256.Sum256(program)
	m := Manifest{Files: []File{
		{Name: "bin/cni", Mode: 0o755, Size: int64(len(program)), SHA256: hex.EncodeToString(sum[:])},
		{Name: "bin/bridge", Mode: fs.ModeSymlink | 0o777, Link: "cni"},
	}}
	for _, c := range change {
		c(&m)
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return packedOf(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "bin/cni", Mode: 0o755, Size: int64(len(program))}, program,
		tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/bridge", Linkname: "cni"}, []byte(nil),
		tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Mode: 0o644, Size: int64(len(manifest))}, manifest)
}

func packedOf(t *testing.T, headersAndContents ...any) source {
	t.Helper()
	var out bytes.Buffer
	compressed, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(compressed)
	for i := 0; i < len(headersAndContents); i += 2 {
		h := headersAndContents[i].(tar.Header)
		if err := archive.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write(headersAndContents[i+1].([]byte)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	return source{id: hex.EncodeToString(sum[:]), data: out.String()}
}

func mustUnpack(t *testing.T, root string, src source) (Dir, string) {
	t.Helper()
	var log bytes.Buffer
	dir, err := unpack(root, src, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return dir, log.String()
}

// says runs the bundle's program by the name of its link.
func says(t *testing.T, d Dir) string {
	t.Helper()
	out, err := exec.Command(d.Path("bridge")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func inode(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestUnpackOnce(t *testing.T) {
	root, src := filepath.Join(t.TempDir(), "bundle"), made(t, "one")
	dir, log := mustUnpack(t, root, src)
	if says(t, dir) != "one" || !strings.Contains(log, "helpers unpacked") || !dir.Intact() {
		t.Fatalf("says %q, log %q, intact %v", says(t, dir), log, dir.Intact())
	}
	before := inode(t, dir.Path("cni"))
	again, log := mustUnpack(t, root, src)
	if again != dir || log != "" || !os.SameFile(before, inode(t, dir.Path("cni"))) {
		t.Fatalf("a whole bundle was unpacked again: %q", log)
	}
	if err := dir.Verify(); err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsNoticedAndMended(t *testing.T) {
	for name, damage := range map[string]func(program string) error{
		"a byte flipped in place": func(p string) error {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("X"), 3)
			return errors.Join(err, f.Close())
		},
		"cut off":        func(p string) error { return os.Truncate(p, 5) },
		"gone":           os.Remove,
		"not executable": func(p string) error { return os.Chmod(p, 0o644) },
		"a link bent": func(p string) error {
			b := filepath.Join(filepath.Dir(p), "bridge")
			return errors.Join(os.Remove(b), os.Symlink("/bin/true", b))
		},
		"manifest torn": func(p string) error { return os.Truncate(filepath.Join(p, "../../manifest.json"), 9) },
		"manifest and check": func(p string) error {
			return errors.Join(os.Remove(filepath.Join(p, "../../manifest.json")), os.Remove(filepath.Join(p, "../../.checked")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, src := t.TempDir(), made(t, "one")
			dir, _ := mustUnpack(t, root, src)
			if err := damage(filepath.Join(root, src.id, "bin/cni")); err != nil {
				t.Fatal(err)
			}
			if dir.Intact() {
				t.Error("the damage is not seen")
			}
			if dir.Verify() == nil {
				t.Fatal("Verify does not see it")
			}
			_, log := mustUnpack(t, root, src)
			if says(t, dir) != "one" || !strings.Contains(log, "damaged") {
				t.Fatalf("says %q, log %q", says(t, dir), log)
			}
			if err := dir.Verify(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A restored backup has the same files with other inodes and times.
func TestFilesThatOnlyLookDifferentStay(t *testing.T) {
	root, src := t.TempDir(), made(t, "one")
	mustUnpack(t, root, src)
	program := filepath.Join(root, src.id, "bin/cni")
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(program), os.WriteFile(program, content, 0o755), os.Chmod(program, 0o755)); err != nil {
		t.Fatal(err)
	}
	before := inode(t, program)
	if _, log := mustUnpack(t, root, src); log != "" || !os.SameFile(before, inode(t, program)) {
		t.Fatalf("unpacked again: %q", log)
	}
	if !checked(filepath.Join(root, src.id)) {
		t.Fatal("the new looks were not remembered: every start would hash")
	}
}

func TestCrashHalfWayLeavesNothingBehind(t *testing.T) {
	root, src := t.TempDir(), made(t, "one")
	// What a power cut leaves: a part of the files, and the fresh link.
	half := filepath.Join(root, unfinished+src.id, "bin")
	if err := errors.Join(os.MkdirAll(half, 0o755), os.WriteFile(filepath.Join(half, "cni"), []byte("hal"), 0o755),
		os.Symlink("nowhere", filepath.Join(root, unfinished+current))); err != nil {
		t.Fatal(err)
	}
	dir, _ := mustUnpack(t, root, src)
	if says(t, dir) != "one" {
		t.Fatal("the half bundle is in use")
	}
	if left, _ := filepath.Glob(filepath.Join(root, unfinished+"*")); len(left) > 0 {
		t.Fatalf("left: %v", left)
	}
}

func TestUpgradeKeepsTheOneBefore(t *testing.T) {
	root := t.TempDir()
	one, two, three := made(t, "one"), made(t, "two"), made(t, "three")
	first, _ := mustUnpack(t, root, one)
	mustUnpack(t, root, two)
	if says(t, first) != "two" {
		t.Fatal("who keeps the path does not see the upgrade")
	}
	if err := os.Mkdir(filepath.Join(root, "the-users-own"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustUnpack(t, root, three)
	mustUnpack(t, root, three) // a restart removes no more
	for name, want := range map[string]bool{one.id: false, two.id: true, three.id: true, "the-users-own": true} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", name[:8], err == nil, want)
		}
	}
}

func TestConcurrentUnpack(t *testing.T) {
	root, src := t.TempDir(), made(t, "one")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := unpack(root, src, slog.New(slog.DiscardHandler)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := (Dir{root, src.id}).Verify(); err != nil {
		t.Fatal(err)
	}
}

func TestRefused(t *testing.T) {
	whole := made(t, "one")
	bits := []byte(whole.data)
	bits[len(bits)/2] ^= 1
	flipped := source{whole.id, string(bits)}
	readOnly := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(readOnly, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, root string
		src        source
		want       string
	}{
		{"damaged inside the binary", t.TempDir(), flipped, "inside the rivulet binary are damaged"},
		{"content against manifest", t.TempDir(), made(t, "one", func(m *Manifest) { m.Files[0].SHA256 = whole.id }), "other content"},
		{"file not packed", t.TempDir(), made(t, "one", func(m *Manifest) { m.Files[1].Name = "bin/portmap" }), "bin/portmap"},
		{"path out of the folder", t.TempDir(), packedOf(t, tar.Header{Typeflag: tar.TypeReg, Name: "../evil"}, []byte(nil)), "leads out"},
		{"device node", t.TempDir(), packedOf(t, tar.Header{Typeflag: tar.TypeChar, Name: "null"}, []byte(nil)), "neither"},
		{"no folder to write to", readOnly, whole, "writable file system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := unpack(c.root, c.src, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if _, err := os.Lstat(filepath.Join(c.root, c.src.id)); err == nil {
				t.Fatal("it is in place all the same")
			}
		})
	}
}

func TestWithoutBundle(t *testing.T) {
	if _, ok := Embedded(); ok {
		t.Skip("built with a bundle; go test without the tag bundle runs this")
	}
	if _, err := Unpack(t.TempDir(), slog.New(slog.DiscardHandler)); !errors.Is(err, ErrNone) || len(Versions()) != 0 {
		t.Fatalf("error %v, versions %v", err, Versions())
	}
}

// A file system that starts no programs is told by name, before anything is written.
func TestNoexecIsNamed(t *testing.T) {
	at := t.TempDir()
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Fatal("make root: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	root := filepath.Join(at, "bundle")
	_, err := unpack(root, made(t, "one"), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "mounted noexec") || !strings.Contains(err.Error(), "mount -o remount,exec ") {
		t.Error(err)
	}
	if err := unix.Mount("", at, "", unix.MS_REMOUNT, ""); err != nil { // as the cure has it
		t.Fatal(err)
	}
	if dir, _ := mustUnpack(t, root, made(t, "one")); says(t, dir) != "one" {
		t.Error("it does not go on")
	}
}
