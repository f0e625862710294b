package filetree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpu is the processor time that the process has taken.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// While a volume is read, what is in it is changed for what leads out of it: a folder for
// a link, a file for a device of the machine, for a link, for a FIFO. None of that is
// read, nothing waits, and the device is not opened.
func TestSwappedWhileRead(t *testing.T) {
	outside := t.TempDir()
	const secret = "the device's own bytes"
	must(t, os.Mkdir(filepath.Join(outside, "d"), 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "d/f"), []byte(secret), 0o600))
	must(t, os.WriteFile(filepath.Join(outside, "f"), []byte(secret), 0o600))

	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(at("d"), 0o755))
	for i := range 8 {
		must(t, os.WriteFile(at(fmt.Sprint("d/f", i)), []byte("mine"), 0o600))
	}
	must(t, os.Mkdir(at("e"), 0o755)) // never swapped itself: the swaps below go by paths
	must(t, os.WriteFile(at("e/f"), []byte("mine"), 0o600))
	must(t, os.WriteFile(at("e/g"), []byte("mine"), 0o600))
	must(t, os.WriteFile(at("f"), []byte("mine"), 0o600))
	must(t, os.Symlink(filepath.Join(outside, "d"), at("z1")))
	must(t, os.Symlink(filepath.Join(outside, "f"), at("z2")))
	must(t, unix.Mkfifo(at("z3"), 0o600))
	pairs := [][2]string{{"d", "z1"}, {"f", "z2"}, {"e/f", "z3"}}
	if os.Geteuid() == 0 {
		// Reading it gives zeros without end; it stands for the disk's block device.
		must(t, unix.Mknod(at("z4"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
		pairs = append(pairs, [2]string{"e/g", "z4"})
	}

	stop := make(chan struct{})
	var swapping sync.WaitGroup
	for _, p := range pairs {
		swapping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Renameat2(unix.AT_FDCWD, at(p[0]), unix.AT_FDCWD, at(p[1]), unix.RENAME_EXCHANGE)
				}
			}
		})
	}
	read, ctx := 0, t.Context()
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); {
		var stream bytes.Buffer
		if err := Pack(ctx, dir, wide, &stream); err == nil {
			read++
		}
		if bytes.Contains(stream.Bytes(), []byte(secret)) || stream.Len() > 64<<10 {
			t.Fatalf("%d bytes of the device came out", stream.Len())
		}
		if _, err := SumUp(ctx, dir, wide); err == nil {
			read++
		}
		if total, err := Measure(ctx, dir, wide); err == nil && total.Bytes > 1<<20 {
			t.Fatalf("%+v", total)
		}
	}
	close(stop)
	swapping.Wait()
	if os.Geteuid() != 0 && read == 0 {
		t.Error("it was never read to the end")
	}
	// The same while all of it is removed: what lies outside stays.
	stop = make(chan struct{})
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = os.Mkdir(at("a"), 0o755)
				_ = os.Symlink(outside, at("b"))
				_ = unix.Renameat2(unix.AT_FDCWD, at("a"), unix.AT_FDCWD, at("b"), unix.RENAME_EXCHANGE)
			}
		}
	})
	for range 300 {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_ = Clear(short, dir) // it may never be empty
		cancel()
	}
	close(stop)
	swapping.Wait()
	must(t, Clear(ctx, dir))
	for _, name := range []string{"f", "d/f"} {
		if raw, err := os.ReadFile(filepath.Join(outside, name)); err != nil || string(raw) != secret {
			t.Errorf("%s: %q %v", name, raw, err)
		}
	}
}

// While a stream is unpacked, folders that it has made are changed for links that lead
// out: nothing is made or changed there.
func TestSwappedWhileWritten(t *testing.T) {
	outside := t.TempDir()
	must(t, os.Chmod(outside, 0o700))
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o777}))
	for i := range 200 {
		name := fmt.Sprint("d/f", i)
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o666, Size: 1, Uid: 77, Gid: 77}))
		_, err := w.Write([]byte("x"))
		must(t, err)
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: name + "p", Mode: 0o666, Uid: 77, Gid: 77}))
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: name + "l", Linkname: name}))
	}
	must(t, w.Close())
	for range 30 {
		dir := t.TempDir()
		must(t, os.Symlink(outside, filepath.Join(dir, "z")))
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "d"), unix.AT_FDCWD, filepath.Join(dir, "z"), unix.RENAME_EXCHANGE)
				}
			}
		}()
		_ = Unpack(t.Context(), dir, wide, bytes.NewReader(stream.Bytes()))
		close(stop)
		<-done
		if left, _ := os.ReadDir(outside); len(left) > 0 {
			t.Fatalf("%v is outside", left)
		}
		if fi, err := os.Stat(outside); err != nil || fi.Mode().Perm() != 0o700 || fi.Sys().(*syscall.Stat_t).Uid == 77 {
			t.Fatalf("%v %v", fi.Mode(), err)
		}
	}
}

// A file of 16 TB that is one hole costs nothing, whether it is beyond the bounds, which
// is refused, or within.
func TestHugeHoles(t *testing.T) {
	const huge = 15 << 40 // what ext4 takes
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	if err := f.Truncate(huge); err != nil {
		t.Skipf("needs a file system that takes files of %d bytes: %v", int64(huge), err)
	}
	_, err = f.WriteAt([]byte("in the middle"), huge/2)
	must(t, err)
	must(t, f.Close())
	ctx := t.Context()
	before := cpu()

	bounds, err := BoundsOf(dir, 1<<30)
	must(t, err)
	if bounds.Logical < huge {
		for what, err := range map[string]error{
			"read":     Pack(ctx, dir, bounds, io.Discard),
			"measured": second(Measure(ctx, dir, bounds)),
			"summed":   second(SumUp(ctx, dir, bounds)),
		} {
			if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "; ") {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	var stream bytes.Buffer
	must(t, Pack(ctx, dir, wide, &stream))
	if stream.Len() > 16<<10 {
		t.Errorf("%d bytes", stream.Len())
	}
	to := t.TempDir()
	if bounds.Logical < huge {
		if err := Unpack(ctx, to, bounds, bytes.NewReader(stream.Bytes())); !errors.Is(err, ErrTooLarge) {
			t.Errorf("unpacked: %v", err)
		}
		must(t, Clear(ctx, to))
	}
	must(t, Unpack(ctx, to, wide, &stream))
	a, err := SumUp(ctx, dir, wide)
	must(t, err)
	b, err := SumUp(ctx, to, wide)
	must(t, err)
	if a != b || a.Bytes != huge {
		t.Errorf("%+v became %+v", a, b)
	}
	if took := cpu() - before; took > 2*time.Second {
		t.Errorf("it took %s of a processor", took)
	} else {
		t.Logf("all of it took %s of a processor", took)
	}

	// What is a stream of zeros in few bytes for a reader of tar: a sparse file of others.
	if err := Unpack(ctx, t.TempDir(), wide, bytes.NewReader(gnuSparse(huge))); err == nil || !strings.Contains(err.Error(), "sparse files of other programs") {
		t.Errorf("%v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// gnuSparse is an archive with one file that is a hole.
func gnuSparse(size int64) []byte {
	raw := func(kind byte, name string, data string) []byte {
		b := make([]byte, 512)
		copy(b, name)
		copy(b[100:], "0000644\x000000000\x000000000\x00")
		copy(b[124:], fmt.Sprintf("%011o\x00", len(data)))
		copy(b[136:], "00000000000\x00        ")
		b[156] = kind
		copy(b[257:], "ustar\x0000")
		sum := 0
		for _, c := range b {
			sum += int(c)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
		b = append(b, data...)
		return append(b, make([]byte, (512-len(data)%512)%512)...)
	}
	records := ""
	for _, r := range []string{"GNU.sparse.size=" + strconv.FormatInt(size, 10), "GNU.sparse.numblocks=1", "GNU.sparse.map=" + strconv.FormatInt(size, 10) + ",0"} {
		n := len(r) + 3
		for len(strconv.Itoa(n))+len(r)+2 != n {
			n++
		}
		records += fmt.Sprintf("%d %s\n", n, r)
	}
	return append(append(raw('x', "x", records), raw('0', "evil", "")...), make([]byte, 1024)...)
}

// Pieces of a file beyond what a header holds are joined, not sent whole; and the bounds
// of that are said.
func TestManyPieces(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	f, err := os.Create(filepath.Join(dir, "f"))
	must(t, err)
	must(t, f.Truncate(1<<40))
	for i := range int64(maxExtents + 500) {
		_, err := f.WriteAt([]byte("x"), i*3*4096)
		must(t, err)
	}
	must(t, f.Close())
	var stream bytes.Buffer
	must(t, Pack(t.Context(), dir, wide, &stream))
	if stream.Len() > 2*3*4096*maxExtents {
		t.Errorf("%d bytes", stream.Len())
	}
	must(t, Unpack(t.Context(), to, wide, &stream))
	a, err := SumUp(t.Context(), dir, wide)
	must(t, err)
	b, err := SumUp(t.Context(), to, wide)
	must(t, err)
	if a != b {
		t.Errorf("%+v became %+v", a, b)
	}
	f, err = os.OpenFile(filepath.Join(dir, "f"), os.O_WRONLY, 0)
	must(t, err)
	for i := range int64(maxExtents + 500) {
		_, err := f.WriteAt([]byte("x"), i*(64<<20))
		must(t, err)
	}
	must(t, f.Close())
	if err := Pack(t.Context(), dir, wide, io.Discard); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "cp --sparse=never") {
		t.Errorf("%v", err)
	}
}

// Folders with headers of nearly 1 MB each: none is kept, and one that is too large is
// refused before it is in memory.
func TestHeadersAreNotKept(t *testing.T) {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		note := strings.Repeat("x", 500<<10)
		for i := range 700 {
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint("d", i), Mode: 0o755, Format: tar.FormatPAX, Uid: os.Getuid(), Gid: os.Getgid(),
				PAXRecords: map[string]string{"RIVULET.note": note}}); err != nil {
				w.CloseWithError(err)
				return
			}
		}
		w.CloseWithError(out.Close())
	}()
	var peak uint64
	dir := t.TempDir()
	err := Unpack(t.Context(), dir, wide, watching{r, func() {
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.HeapAlloc > peak {
			peak = m.HeapAlloc
		}
	}, new(int)})
	must(t, err)
	if peak > 64<<20 {
		t.Errorf("%d MB were held", peak>>20)
	}
	t.Logf("at most %d MB were held", peak>>20)
	if names, _ := os.ReadDir(dir); len(names) != 700 {
		t.Errorf("%d folders", len(names))
	}

	for what, h := range map[string]tar.Header{
		"records":     {Typeflag: tar.TypeReg, Name: "f", PAXRecords: map[string]string{"RIVULET.note": strings.Repeat("x", 900<<10)}},
		"a long name": {Typeflag: tar.TypeReg, Name: strings.Repeat("x/", 450<<10) + "x"},
		"a long link": {Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("x", 900<<10)},
	} {
		var stream bytes.Buffer
		out := tar.NewWriter(&stream)
		h.Format = tar.FormatPAX
		must(t, out.WriteHeader(&h))
		must(t, out.Close())
		if err := Unpack(t.Context(), t.TempDir(), wide, &stream); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Open folders, one in the other, each with attributes.
	var stream bytes.Buffer
	out := tar.NewWriter(&stream)
	name := ""
	for range 100 {
		name += "d/"
		must(t, out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755, Format: tar.FormatPAX, PAXRecords: map[string]string{recordXattr + "user.x": strings.Repeat("x", 60<<10)}}))
	}
	must(t, out.Close())
	if err := Unpack(t.Context(), t.TempDir(), wide, &stream); !errors.Is(err, ErrTooLarge) {
		t.Errorf("attributes of open folders: %v", err)
	}
}

type watching struct {
	io.Reader
	look  func()
	count *int
}

func (w watching) Read(p []byte) (int, error) {
	if *w.count++; *w.count%8192 == 0 {
		w.look()
	}
	return w.Reader.Read(p)
}

// Entries and data are bounded on both sides.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 1000), 0o600))
	}
	var stream bytes.Buffer
	must(t, Pack(t.Context(), dir, wide, &stream))
	few, little := wide, wide
	few.Entries, little.Data = 10, 10_000
	for what, err := range map[string]error{
		"entries read":    Pack(t.Context(), dir, few, io.Discard),
		"entries written": Unpack(t.Context(), t.TempDir(), few, bytes.NewReader(stream.Bytes())),
		"data written":    Unpack(t.Context(), t.TempDir(), little, bytes.NewReader(stream.Bytes())),
		"none":            Unpack(t.Context(), t.TempDir(), Bounds{}, bytes.NewReader(stream.Bytes())),
	} {
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Everything ends with its context, within a second.
func TestEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	big, err := os.Create(filepath.Join(dir, "big"))
	must(t, err)
	for i := range int64(2000) {
		_, err := big.WriteAt(bytes.Repeat([]byte("x"), 64<<10), i*128<<10)
		must(t, err)
	}
	must(t, big.Close())
	for i := range 3000 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	ended := func(what string, f func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			var err error
			for err == nil { // again and again, so that it is in the middle
				err = f(ctx)
			}
			done <- err
		}()
		time.AfterFunc(50*time.Millisecond, cancel)
		<-ctx.Done()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(time.Second):
			t.Fatalf("%s goes on", what)
		}
	}
	ended("reading", func(ctx context.Context) error { return Pack(ctx, dir, wide, io.Discard) })
	ended("measuring", func(ctx context.Context) error { return second(Measure(ctx, dir, wide)) })
	ended("summing", func(ctx context.Context) error { return second(SumUp(ctx, dir, wide)) })
	ended("writing", func(ctx context.Context) error {
		r, w := io.Pipe()
		go func() {
			out := tar.NewWriter(w)
			_ = out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o600, Size: 1 << 40})
			for err := error(nil); err == nil; {
				_, err = out.Write([]byte("slowly"))
			}
		}()
		defer r.Close()
		return Unpack(ctx, t.TempDir(), wide, r)
	})
	ended("removing", func(ctx context.Context) error { return Clear(ctx, dir) })
}

// A tree that is deeper than descriptors reach is removed all the same, and refused by
// the others.
func TestDeepTree(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	const deep = 5000
	for range deep {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	if err := Pack(t.Context(), dir, wide, io.Discard); err == nil || !strings.Contains(err.Error(), "deep; pack") {
		t.Errorf("%v", err)
	}
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 400
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	err = Clear(t.Context(), dir)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, err)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%d left", len(left))
	}
}

// No stream panics, waits, or makes anything outside.
func FuzzUnpack(f *testing.F) {
	dir := f.TempDir()
	fill(f, dir)
	var stream bytes.Buffer
	must(f, Pack(f.Context(), dir, wide, &stream))
	f.Add(stream.Bytes())
	f.Add(gnuSparse(1 << 44))
	f.Fuzz(func(t *testing.T, raw []byte) {
		top := t.TempDir()
		to := filepath.Join(top, "v")
		must(t, os.Mkdir(to, 0o700))
		small := Bounds{Entries: 200, Logical: 64 << 20, Data: 1 << 20}
		err := Unpack(t.Context(), to, small, bytes.NewReader(raw))
		if names, _ := os.ReadDir(top); len(names) != 1 {
			t.Fatalf("%v", names)
		}
		if err != nil {
			return
		}
		small.Entries *= 2
		if _, err := SumUp(t.Context(), to, small); err != nil {
			t.Fatal(err)
		}
	})
}
