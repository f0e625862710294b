package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	semver "k8s.io/apimachinery/pkg/util/version"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/vcluster"
	"rivulet/appliance/version"
	"rivulet/fabric/cure"
	"rivulet/image/flash"
	"rivulet/image/signed"
	"rivulet/systemd"
)

// Defaults of the window in which an update is tried.
const (
	DefaultWindow = 15 * time.Minute
	DefaultEvery  = time.Minute
)

// Request is the request of `rivulet upgrade`.
type Request struct {
	State string // the state folder
	File  string // the release; FILE.sig is beside it
	// Running is the running executable, RunningBuild its build.
	Running, RunningBuild string
	Window, Every         time.Duration
	Peers                 []string // connected now
	// Paths are their paths in use, as in `rivulet status`.
	Paths     map[string]string
	CheckOnly bool
	Older     bool           // than the running version is permitted
	Progress  flash.Progress // nil: none
	Now       time.Time
}

// answering returns the addresses of those peers that take a TCP connection now; one behind a relay has none.
func (r Request) answering(ctx context.Context) map[string]string {
	addrs := map[string]string{}
	for id, path := range r.Paths {
		if kind, addr, _ := strings.Cut(path, " "); kind == "direct" || kind == "stream" {
			addrs[id] = addr
		}
	}
	return answering(ctx, addrs)
}

// RunsAlready is in the text of the refusal of the running version, also when it comes from another device.
const RunsAlready = "runs already"

var (
	// ErrBusy is returned while an update is tried.
	ErrBusy = errors.New("update: another update is being tried")
	// ErrRefused is in every error for a refused file.
	ErrRefused = errors.New("update: refused")
)

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

const binaryName = "rivulet"

// Stage checks a release file and, unless only that was requested, stores it beside the running version, to be tried at
// the next start. It runs nothing of the file before the signature is verified.
func Stage(ctx context.Context, r Request) (next Version, err error) {
	dir := paths.Versions(r.State)
	trust, err := signed.Linked()
	if err != nil {
		return next, err
	}
	sig, err := readSignature(r.File)
	if err != nil {
		return next, err
	}
	s, release, err := claim(dir)
	if err != nil {
		return next, err
	}
	defer release()
	work := filepath.Join(dir, ".new")
	os.RemoveAll(work) // left by a killed upgrade
	defer os.RemoveAll(work)
	if err := os.Mkdir(work, 0o755); err != nil {
		return next, fmt.Errorf("update: %w; look at the disk (space, read-only mount)", err)
	}
	staged := filepath.Join(work, binaryName)
	digest := signed.NewDigest()
	hash, err := take(r, digest, staged)
	if err != nil {
		return next, err
	}
	if err := sig.Verify(digest, trust.AtLeast(s.Generation)); err != nil {
		return next, refused("%w", err)
	}
	if next, err = inspect(ctx, staged); err != nil {
		return next, refused("%w", err)
	}
	from, err := running(ctx, r)
	if err != nil {
		return next, err
	}
	if err := fits(onData(r.State, from), next, r.Older); err != nil {
		return next, err
	}
	if next.Dir, err = dirName(next.Name, hash); err != nil || r.CheckOnly {
		return next, err
	}
	if from, err = keep(dir, s, from, r.Running); err != nil {
		return next, err
	}
	if err := place(dir, work, next.Dir); err != nil {
		return next, err
	}
	os.Remove(filepath.Join(dir, cancelName))
	if id := packaged(systemd.PackageBinary); id != "" {
		s.Base = id // no upgrade replaces it, so it is another one after a newer package
	} else if s.Base == "" {
		s.Base = from.BuildID
	}
	return next, store(dir, s.staged(Attempt{Next: next, From: from, Window: r.Window, Every: r.Every, Peers: r.Peers, Answered: r.answering(ctx),
		Generation: sig.Certificate.Generation, StagedAt: r.Now}))
}

// packaged is the build of a package's program, with which the service starts; empty where path is no such program but,
// for example, a link.
func packaged(path string) string {
	if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() {
		return ""
	}
	id, err := BuildID(path)
	if err != nil {
		return ""
	}
	return id
}

// claim reserves the folder for one upgrade until release; it fails while another one is in progress.
func claim(dir string) (s State, release func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return s, nil, fmt.Errorf("update: %w; run as root", err)
	}
	if release, err = lock(dir); err != nil {
		return s, nil, err
	}
	if s, err = Load(dir); err == nil {
		err = s.busy()
	}
	if err != nil {
		release()
		return s, nil, err
	}
	return s, release, nil
}

// busy returns an error while a version is tried or undone.
func (s State) busy() error {
	if s.Phase != Trying && s.Phase != Returning {
		return nil
	}
	return cure.Errorf("%w (%s); it comes to an end by itself while rivulet runs: systemctl start rivulet, and rivulet upgrade shows it. To undo it now: sudo rivulet upgrade --cancel", ErrBusy, s.Attempt.Next.Name)
}

// MayReplace returns an error if this program must not take the place of the installed one: another is on trial, or the
// data are of a newer Kubernetes.
func MayReplace(state string) error {
	if s, err := Load(paths.Versions(state)); err == nil { // one that cannot be read ends with the installation
		if err := s.busy(); err != nil {
			return err
		}
	}
	return datastore.Readable(state)
}

// Cancel cancels an update: a staged one is dropped, a tried one is undone at the judge's next check.
func Cancel(state string, now time.Time) (Phase, error) {
	dir := paths.Versions(state)
	s, err := Load(dir)
	if err == nil && s.Phase == Staged {
		release, busy := lock(dir)
		if busy != nil {
			return s.Phase, busy
		}
		defer release()
		s, err = Load(dir) // nothing changes it any more
	}
	switch {
	case err != nil:
		return Idle, err
	case s.Phase == Staged:
		return Staged, store(dir, s.ended("cancelled by hand before it was tried", "", now))
	case s.Phase == Trying:
		if err := os.WriteFile(filepath.Join(dir, cancelName), nil, 0o600); err != nil {
			return Trying, fmt.Errorf("update: %w; run as root", err)
		}
	}
	return s.Phase, nil
}

// cancelName is a file that makes the judge end the trial.
const cancelName = "cancel"

func lock(dir string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("update: %w; run as root, and look at the disk (df, dmesg)", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w; wait for its end (see: rivulet upgrade) or stop it with: rivulet upgrade --cancel", ErrBusy)
	}
	return func() { f.Close() }, nil
}

func readSignature(file string) (signed.Signature, error) {
	s, err := signed.Beside(file)
	if err == nil {
		return s, nil
	}
	if _, err := os.Stat(file); err != nil {
		return s, fmt.Errorf("update: %w; name the file of a release", err)
	}
	return s, refused("%w", err)
}

const (
	// MaxRelease bounds a release, unpacked, bytes.
	MaxRelease = 1 << 30
	// spare is what stays free on the disk beside the new version and the snapshot, bytes.
	spare = 100 << 20
)

// zstdMagic begins a compressed release, and a backup.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// take copies and unpacks the release to a new file, and hashes what it writes, so that exactly the checked content
// will run.
func take(r Request, digest io.Writer, to string) (hash string, err error) {
	f, err := os.Open(r.File)
	if err != nil {
		return "", fmt.Errorf("update: %w; name the file of a release", err)
	}
	defer f.Close()
	if err := enough(r.State, f); err != nil {
		return "", err
	}
	fi, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("update: %w", err)
	}
	in := bufio.NewReaderSize(&counted{Reader: f, of: fi.Size(), show: r.progress()}, 1<<20)
	var content io.Reader = in
	if magic, _ := in.Peek(len(zstdMagic)); bytes.Equal(magic, zstdMagic) {
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return "", fmt.Errorf("update: %w", err)
		}
		defer z.Close()
		content = z
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("update: %w; look at the disk (space, read-only mount)", err)
	}
	defer out.Close()
	sum := sha256.New()
	disk := &durable.Writer{Writer: out}
	n, err := io.Copy(io.MultiWriter(disk, sum, digest), io.LimitReader(content, MaxRelease+1))
	switch {
	case disk.Err != nil:
		return "", fmt.Errorf("update: %w; look at the disk (space, read-only mount)", disk.Err)
	case err != nil:
		return "", refused("the file cannot be unpacked: %w; get it once more", err)
	case n > MaxRelease:
		return "", refused("the file is larger than any release; get the file of a release")
	}
	if err := errors.Join(out.Chmod(0o755), out.Sync()); err != nil { // in this order: it must be there with its mode after a power cut
		return "", fmt.Errorf("update: %w; look at the disk", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), out.Close()
}

// enough checks, before any write, the space for the unpacked binary, a copy of the old one and the snapshot of the
// data.
func enough(state string, f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if !fi.Mode().IsRegular() {
		return refused("%s is not a file; name the file of a release", f.Name())
	}
	want := 2*fi.Size() + spare
	if strings.HasSuffix(f.Name(), ".zst") {
		want += 4 * fi.Size()
	}
	return Room(state, want)
}

// Room checks for that many bytes, and the snapshot of the data: a copy of each datastore, and the stream with all of them.
func Room(state string, want int64) error {
	want += vcluster.Room(state)
	if db, err := os.Stat(datastore.Path(state)); err == nil {
		want += 2 * db.Size()
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(state, &disk); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if free := int64(disk.Bavail) * int64(disk.Bsize); free < want {
		return refused("%s has %d MB free, an update wants %d MB; free some space: rivulet image rm --unused", state, free>>20, want>>20)
	}
	return nil
}

// running returns the running version.
func running(ctx context.Context, r Request) (Version, error) {
	v, err := inspect(ctx, r.Running)
	if err != nil {
		return v, fmt.Errorf("update: the version that runs now (%s): %w", r.Running, err)
	}
	if r.RunningBuild != "" && r.RunningBuild != v.BuildID {
		return v, fmt.Errorf("update: %s was replaced and another rivulet still runs; restart it first: systemctl restart rivulet", r.Running)
	}
	return v, nil
}

// onData returns v with the Kubernetes of the data, where that is newer: an older program was put in its place.
func onData(state string, v Version) Version {
	data, err := version.Minor(datastore.Kubernetes(state))
	if runs, rerr := version.Minor(v.Kubernetes); err == nil && rerr == nil && data > runs {
		v.Kubernetes = datastore.Kubernetes(state)
	}
	return v
}

// fits checks the step from one version to another. Versions that are no semantic ones have no order.
func fits(from, next Version, older bool) error {
	if from.BuildID == next.BuildID {
		return refused("%s "+RunsAlready+"; there is nothing to do", next.Name)
	}
	was, err := version.Minor(from.Kubernetes)
	if err != nil {
		return err
	}
	will, err := version.Minor(next.Kubernetes)
	if err != nil {
		return err
	}
	runs, errRuns := semver.ParseSemantic(from.Name)
	takes, errTakes := semver.ParseSemantic(next.Name)
	switch {
	case errRuns == nil && errTakes == nil && takes.LessThan(runs) && !older && will >= was:
		return refused("it is %s, and here runs %s: what was mended since is open again with it; take a newer release, or add --older", next.Name, from.Name)
	case will < was:
		return refused("it has Kubernetes %s, here runs %s, and a cluster's database is never taken back; use a newer release, or restore a backup with the old one",
			next.Kubernetes, from.Kubernetes)
	case will > was+1:
		return refused("it has Kubernetes %s, here runs %s: no minor version may be left out; take a release with Kubernetes 1.%d first",
			next.Kubernetes, from.Kubernetes, was+1)
	}
	return nil
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,60}$`)

func dirName(name, hash string) (string, error) {
	if !plainName.MatchString(name) {
		return "", refused("its version %q cannot be a folder's name; get the file of a release", name)
	}
	return name + "-" + hash[:12], nil
}

// keep makes sure that the running version is below versions, for a later return, and returns it with its place.
func keep(dir string, s State, from Version, path string) (Version, error) {
	if s.Current != nil && s.Current.BuildID == from.BuildID {
		return *s.Current, nil
	}
	work := filepath.Join(dir, ".old")
	os.RemoveAll(work)
	defer os.RemoveAll(work)
	if err := os.Mkdir(work, 0o755); err != nil {
		return from, fmt.Errorf("update: %w; look at the disk (space, read-only mount)", err)
	}
	digest := sha256.New()
	in, err := os.Open(path)
	if err != nil {
		return from, fmt.Errorf("update: %w", err)
	}
	defer in.Close()
	if err := durable.Replace(filepath.Join(work, binaryName), 0o755, func(f *os.File) error {
		_, err := io.Copy(io.MultiWriter(f, digest), in)
		return durable.Cure(err)
	}); err != nil {
		return from, updateErr(err)
	}
	if from.Dir, err = dirName(from.Name, hex.EncodeToString(digest.Sum(nil))); err != nil {
		return from, err
	}
	return from, place(dir, work, from.Dir)
}

// place moves a finished folder to its name, and replaces one of the same content from an earlier update.
func place(dir, work, name string) error {
	to := filepath.Join(dir, name)
	if err := durable.SyncDir(work); err != nil {
		return updateErr(err)
	}
	if err := os.RemoveAll(to); err != nil {
		return updateErr(err)
	}
	return updateErr(durable.Rename(work, to))
}
