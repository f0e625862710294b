package filetree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func must(t interface{ Fatal(...any) }, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// fill makes one of everything that is carried.
func fill(t testing.TB, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(at("d"), 0o750))
	must(t, os.WriteFile(at("d/file"), []byte("data\n"), 0o640))
	must(t, os.Link(at("d/file"), at("hard")))
	must(t, os.Symlink("/etc/passwd", at("link")))
	must(t, os.Symlink("d/file", at("d/dangling")))
	must(t, os.WriteFile(at("empty"), nil, 0o600))
	must(t, unix.Mkfifo(at("fifo"), 0o622))
	must(t, os.WriteFile(at("tool"), []byte("x"), 0o700))
	if os.Geteuid() == 0 {
		must(t, os.Chown(at("d/file"), 1234, 5678))
		must(t, os.Lchown(at("link"), 7, 8))
		must(t, os.Chown(at("tool"), 99, 99))
	}
	must(t, os.Chmod(at("tool"), 0o755|fs.ModeSetuid))
	must(t, os.WriteFile(at(strings.Repeat("ü", 120)), []byte("long name"), 0o644))
	if err := unix.Setxattr(at("d/file"), "user.note", []byte("a\x00b=\n"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	f, err := os.Create(at("sparse"))
	must(t, err)
	must(t, f.Truncate(64<<20))
	_, err = f.WriteAt([]byte("in the middle"), 30<<20)
	must(t, err)
	must(t, f.Close())
	then := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	must(t, os.Chtimes(at("d/file"), then, then))
	must(t, os.Chtimes(at("d"), then, then))
}

// wide bounds nothing that a test makes.
var wide = Bounds{Entries: 1 << 20, Logical: 1 << 50, Data: 1 << 50}

func sum(t interface {
	Fatal(...any)
	Context() context.Context
}, dir string) Sum {
	s, err := SumUp(t.Context(), dir, wide)
	must(t, err)
	return s
}

func TestCarriesEverything(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	fill(t, from)
	must(t, unix.Mknod(filepath.Join(from, "socket"), unix.S_IFSOCK|0o600, 0))
	var stream bytes.Buffer
	must(t, Pack(t.Context(), from, wide, &stream))
	if stream.Len() > 4<<20 {
		t.Errorf("the holes are sent: %d bytes", stream.Len())
	}
	must(t, Unpack(t.Context(), to, wide, bytes.NewReader(stream.Bytes())))
	if a, b := sum(t, from), sum(t, to); a != b || a.Files != 10 {
		t.Errorf("%+v became %+v", a, b)
	}
	fi, err := os.Stat(filepath.Join(to, "sparse"))
	must(t, err)
	if st := fi.Sys().(*syscall.Stat_t); fi.Size() != 64<<20 || st.Blocks*512 > 8<<20 {
		t.Errorf("the holes are filled: %d bytes of %d", st.Blocks*512, fi.Size())
	}
	a, err := os.Stat(filepath.Join(to, "hard"))
	must(t, err)
	b, err := os.Stat(filepath.Join(to, "d/file"))
	must(t, err)
	if !os.SameFile(a, b) || a.ModTime().Year() != 2001 {
		t.Errorf("hard link or time lost: %v %v", a.ModTime(), b.ModTime())
	}
	d, err := os.Stat(filepath.Join(to, "d"))
	must(t, err)
	if d.ModTime().Year() != 2001 || d.Mode().Perm() != 0o750 {
		t.Errorf("folder %v %v", d.Mode(), d.ModTime())
	}
	m, err := Measure(t.Context(), from, wide)
	must(t, err)
	if m.Files != 10 || m.Bytes > 8<<20 {
		t.Errorf("measured %+v", m)
	}
	must(t, Clear(t.Context(), to))
	if entries, _ := os.ReadDir(to); len(entries) != 0 {
		t.Errorf("%d left", len(entries))
	}
}

// Each thing that may go wrong in a copy changes the sum.
func TestSumTellsDifferences(t *testing.T) {
	whole := t.TempDir()
	fill(t, whole)
	want := sum(t, whole)
	for what, change := range map[string]func(at func(string) string) error{
		"a byte":      func(at func(string) string) error { return os.WriteFile(at("d/file"), []byte("dat4\n"), 0) },
		"a mode":      func(at func(string) string) error { return os.Chmod(at("empty"), 0o644) },
		"setuid":      func(at func(string) string) error { return os.Chmod(at("tool"), 0o755) },
		"a time":      func(at func(string) string) error { return os.Chtimes(at("empty"), time.Now(), time.Unix(5, 5)) },
		"a name":      func(at func(string) string) error { return os.Rename(at("empty"), at("full")) },
		"a file more": func(at func(string) string) error { return os.WriteFile(at("more"), nil, 0o600) },
		"a file less": func(at func(string) string) error { return os.Remove(at("empty")) },
		"another link": func(at func(string) string) error {
			return errors.Join(os.Remove(at("link")), os.Symlink("x", at("link")))
		},
		"a link cut": func(at func(string) string) error {
			raw, err := os.ReadFile(at("hard"))
			return errors.Join(err, os.Remove(at("hard")), os.WriteFile(at("hard"), raw, 0o640))
		},
		"the end of a file": func(at func(string) string) error { return os.Truncate(at("sparse"), 63<<20) },
		"an owner":          func(at func(string) string) error { return os.Chown(at("empty"), 4321, 4321) },
	} {
		if what == "an owner" && os.Geteuid() != 0 {
			continue
		}
		dir := t.TempDir()
		var stream bytes.Buffer
		must(t, Pack(t.Context(), whole, wide, &stream))
		must(t, Unpack(t.Context(), dir, wide, &stream))
		if got := sum(t, dir); got != want {
			t.Fatalf("the copy differs: %+v, want %+v", got, want)
		}
		must(t, change(func(name string) string { return filepath.Join(dir, name) }))
		if got := sum(t, dir); got.Digest == want.Digest {
			t.Errorf("%s is not seen", what)
		}
	}
}

// Any tree of files comes out as it went in.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, err := os.MkdirTemp("", "tree")
		must(t, err)
		defer os.RemoveAll(from)
		to, err := os.MkdirTemp("", "tree")
		must(t, err)
		defer os.RemoveAll(to)
		folders := []string{"."}
		var files []string
		for i := range rapid.IntRange(0, 12).Draw(t, "entries") {
			name := filepath.Join(from, rapid.SampledFrom(folders).Draw(t, "folder"), fmt.Sprintf("%s%d", rapid.StringMatching(`[^/\x00]{1,20}`).Draw(t, "name"), i))
			below, err := filepath.Rel(from, name)
			must(t, err)
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				must(t, os.Mkdir(name, 0o755))
				folders = append(folders, below)
			case 1:
				f, err := os.Create(name)
				must(t, err)
				must(t, f.Truncate(rapid.Int64Range(0, 1<<20).Draw(t, "size")))
				for range rapid.IntRange(0, 3).Draw(t, "pieces") {
					_, err := f.WriteAt(rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "data"), rapid.Int64Range(0, 2<<20).Draw(t, "at"))
					must(t, err)
				}
				must(t, f.Close())
				files = append(files, name)
			case 2:
				must(t, os.Symlink(rapid.StringMatching(`[^\x00]{1,30}`).Draw(t, "to"), name))
			case 3:
				if len(files) > 0 {
					must(t, os.Link(rapid.SampledFrom(files).Draw(t, "of"), name))
				}
			}
		}
		var stream bytes.Buffer
		must(t, Pack(t.Context(), from, wide, &stream))
		must(t, Unpack(t.Context(), to, wide, &stream))
		if a, b := sum(t, from), sum(t, to); a != b {
			t.Fatalf("%+v became %+v", a, b)
		}
	})
}

// A stream written by an enemy leads nowhere but into the folder.
func TestHostileStreams(t *testing.T) {
	outside := t.TempDir()
	for what, entries := range map[string][]tar.Header{
		"path up":            {{Typeflag: tar.TypeReg, Name: "../evil", Mode: 0o644}},
		"absolute path":      {{Typeflag: tar.TypeReg, Name: outside + "/evil", Mode: 0o644}},
		"through a link":     {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, {Typeflag: tar.TypeReg, Name: "l/evil", Mode: 0o644}},
		"hard link out":      {{Typeflag: tar.TypeLink, Name: "evil", Linkname: "../../etc/passwd"}},
		"device":             {{Typeflag: tar.TypeBlock, Name: "evil", Devmajor: 8}},
		"over a file":        {{Typeflag: tar.TypeReg, Name: "evil", Mode: 0o644}, {Typeflag: tar.TypeReg, Name: "evil", Mode: 0o644}},
		"pieces beyond":      {{Typeflag: tar.TypeReg, Name: "evil", PAXRecords: map[string]string{recordSize: "5", recordData: "4:2"}}},
		"pieces that repeat": {{Typeflag: tar.TypeReg, Name: "evil", PAXRecords: map[string]string{recordSize: "5", recordData: "0:2,1:2"}}},
		"size of nothing":    {{Typeflag: tar.TypeReg, Name: "evil", PAXRecords: map[string]string{recordSize: "-5"}}},
		"folder is a link":   {{Typeflag: tar.TypeSymlink, Name: "d", Linkname: outside}, {Typeflag: tar.TypeDir, Name: "d"}},
		"not after folder":   {{Typeflag: tar.TypeDir, Name: "a"}, {Typeflag: tar.TypeReg, Name: "b"}, {Typeflag: tar.TypeReg, Name: "a/evil"}},
		"link to a folder":   {{Typeflag: tar.TypeDir, Name: "a"}, {Typeflag: tar.TypeLink, Name: "evil", Linkname: "a"}},
		"link by a link":     {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, {Typeflag: tar.TypeLink, Name: "evil", Linkname: "l/x"}},
		"the folder later":   {{Typeflag: tar.TypeDir, Name: "a"}, {Typeflag: tar.TypeDir, Name: "."}},
		"fifo through link":  {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}, {Typeflag: tar.TypeFifo, Name: "l/evil"}},
	} {
		var stream bytes.Buffer
		w := tar.NewWriter(&stream)
		for _, h := range entries {
			h.Format = tar.FormatPAX
			must(t, w.WriteHeader(&h))
		}
		must(t, w.Close())
		if err := Unpack(t.Context(), t.TempDir(), wide, &stream); err == nil {
			t.Errorf("%s is taken", what)
		}
		if left, _ := os.ReadDir(outside); len(left) > 0 {
			t.Fatalf("%s: %v is outside", what, left)
		}
	}
	// The device's own attributes are not set by a stream.
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, Format: tar.FormatPAX, Uid: os.Getuid(), Gid: os.Getgid(),
		PAXRecords: map[string]string{recordXattr + "trusted.overlay.opaque": "y", recordXattr + "security.capability": "x"}}))
	must(t, w.Close())
	dir := t.TempDir()
	must(t, Unpack(t.Context(), dir, wide, &stream))
	if n, err := unix.Listxattr(filepath.Join(dir, "f"), make([]byte, 4096)); err == nil && n > 0 {
		t.Errorf("%d bytes of attributes", n)
	}
}

func TestNoRoom(t *testing.T) {
	if err := Fits(t.TempDir(), 1<<60); !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "; free space") {
		t.Error(err)
	}
	if err := Pack(t.Context(), "/dev", wide, new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "device file") {
		t.Errorf("device files: %v", err)
	}
}

// What a volume takes is what the file system gives back with it: holes and second links take nothing.
func TestUsed(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int64) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	used := func() Total {
		t.Helper()
		got, err := Used(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	empty := used()
	big := write("a/b", 10<<20)
	if err := os.Link(big, filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	hole := write("hole", 0)
	if err := os.Truncate(hole, 1<<40); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "all")); err != nil {
		t.Fatal(err)
	}
	got := used()
	if grown := got.Bytes - empty.Bytes; grown < 10<<20 || grown > 11<<20 || got.Files-empty.Files != 5 {
		t.Errorf("%+v, and empty %+v", got, empty)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if part := Take(ctx, dir); part.Unmeasured || part.Bytes > got.Bytes {
		t.Errorf("without time: %+v", part)
	}
	deep := dir
	for range maxDepth + 1 {
		deep = filepath.Join(deep, "d")
	}
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if taken := Take(t.Context(), dir); !taken.Unmeasured {
		t.Errorf("deeper than anybody looks: %+v", taken)
	}
	if taken := Take(t.Context(), filepath.Join(dir, "gone")); taken.Unmeasured || taken.Bytes != 0 {
		t.Errorf("a folder that is not there: %+v", taken)
	}
}

func TestLacks(t *testing.T) {
	for _, x := range []struct {
		d    Disk
		want bool
	}{
		{Disk{Size: 100, Free: 10}, false}, {Disk{Size: 100, Free: 9}, true}, {Disk{Size: 100, Free: 50, Inodes: 100, InodesFree: 9}, true},
		{Disk{Size: 100, Free: 50, Inodes: 100, InodesFree: 10}, false}, {Disk{Size: 100, Free: 50}, false}, // without a count
	} {
		if got := x.d.Lacks(10); got != x.want {
			t.Errorf("%+v: %v", x.d, got)
		}
	}
	d, err := DiskOf(t.TempDir())
	if err != nil || d.Size <= 0 || d.Free <= 0 || d.Free > d.Size {
		t.Errorf("%+v %v", d, err)
	}
}
