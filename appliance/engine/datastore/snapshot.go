package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"rivulet/appliance/state/durable"
	"rivulet/fabric/changes"
)

// Copy writes a consistent copy of a database in use to a new file: SQLite reads it in one transaction, which in WAL
// mode neither waits for writers nor blocks them.
func Copy(ctx context.Context, from, to string) error {
	db, err := Open(from, "rw")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
		return fmt.Errorf("datastore: copying %s: %w; look at the disk (space, read-only mount)", from, err)
	}
	if err := os.Chmod(to, 0o600); err != nil {
		return fmt.Errorf("datastore: %w", err)
	}
	return nil
}

// Snapshot is a file that Snapshotter made.
type Snapshot struct {
	Path string
	Time time.Time // by the clock of that moment, which may have been wrong
	// number orders them: each has one more than all before. It is 0 for those of versions without it.
	number int
}

const (
	snapshotPrefix = "datastore-"
	snapshotSuffix = ".db.zst"
	// The fraction of the second is the number. Versions without numbers read such a name as well.
	snapshotTime = "20060102T150405.000000000Z"
)

// List returns the snapshots in a folder, the newest first: by their numbers, and those without by the time in the name.
func List(dir string) []Snapshot {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []Snapshot
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), snapshotPrefix)
		if !ok {
			continue
		}
		if name, ok = strings.CutSuffix(name, snapshotSuffix); !ok {
			continue
		}
		if at, err := time.Parse("20060102T150405Z", name); err == nil { // with or without a fraction
			out = append(out, Snapshot{filepath.Join(dir, e.Name()), at.Truncate(time.Second), at.Nanosecond()})
		}
	}
	slices.SortFunc(out, func(a, b Snapshot) int { return cmp.Or(b.number-a.number, b.Time.Compare(a.Time)) })
	return out
}

// Snapshotter makes snapshots while the engine runs. They are small (a new cluster: about 1 MB) and rare: a few MB per
// day on the SD card.
type Snapshotter struct {
	Database string
	Dir      string
	Temp     string // folder of the uncompressed copy: in memory, if there is room
	Every    time.Duration
	Keep     int
	Log      *slog.Logger
}

// The first snapshot of a cluster is early: the first objects are the most important ones.
const firstSnapshot = 2 * time.Minute

// Run makes snapshots until ctx ends. report is called at once: a cluster without a snapshot works.
func (k *Snapshotter) Run(ctx context.Context, report func(error)) error {
	for {
		wait := firstSnapshot
		if have := List(k.Dir); len(have) > 0 {
			// A snapshot dated in the future must not delay the next one for ever.
			wait = min(max(k.Every-time.Since(have[0].Time), firstSnapshot), k.Every)
		}
		if !changes.Wait(ctx, wait) {
			return nil
		}
		s, err := k.Make(ctx, time.Now())
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped
		}
		report(err)
		if err == nil {
			k.Log.Info("datastore snapshot", "file", s.Path)
		}
	}
}

// Make makes a snapshot now and deletes those beyond Keep.
func (k *Snapshotter) Make(ctx context.Context, now time.Time) (Snapshot, error) {
	s := Snapshot{Time: now.UTC().Truncate(time.Second), number: 1}
	if have := List(k.Dir); len(have) > 0 {
		s.number = have[0].number + 1
	}
	s.Path = filepath.Join(k.Dir, snapshotPrefix+s.Time.Add(time.Duration(s.number)).Format(snapshotTime)+snapshotSuffix)
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return s, fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	plain := filepath.Join(k.Temp, "snapshot.db")
	os.Remove(plain)
	defer os.Remove(plain)
	if err := Copy(ctx, k.Database, plain); err != nil {
		return s, err
	}
	// A damaged database never becomes the newest snapshot.
	if err := Check(ctx, plain); err != nil {
		return s, fmt.Errorf("%w: no snapshot was made; restart the device to have it recovered", err)
	}
	if err := durable.Replace(s.Path, 0o600, func(f *os.File) error { return pack(plain, f) }); err != nil {
		return s, fmt.Errorf("datastore: %w", err)
	}
	for i, old := range List(k.Dir) {
		if i >= k.Keep {
			os.Remove(old.Path)
		}
	}
	return s, nil
}

func pack(from string, out io.Writer) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// One thread and a small window, because it shares a small board with the cluster.
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err == nil {
		_, err = io.Copy(z, in)
	}
	if z != nil {
		err = errors.Join(err, z.Close())
	}
	return durable.Cure(err)
}

func unpack(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("datastore: %w", err)
	}
	defer in.Close()
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("datastore: %s: %w", from, err)
	}
	defer z.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("datastore: %w; look at the disk (space, read-only mount)", err)
	}
	_, err = io.Copy(out, z)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("datastore: %s: %w", from, err)
	}
	return nil
}
