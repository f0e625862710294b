package images

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"

	"rivulet/appliance/health"
	"rivulet/appliance/state/quarantine"
)

// snapshotter is a folder with committed layers, and one of a container. Those with a time have a folder of that time.
func snapshotter(t *testing.T, dir string, layers map[uint64]time.Time) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(filepath.Join(dir, "metadata.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		v1, err := tx.CreateBucketIfNotExists([]byte("v1"))
		if err != nil {
			return err
		}
		all, err := v1.CreateBucketIfNotExists([]byte("snapshots"))
		if err != nil {
			return err
		}
		for id := range layers {
			s, err := all.CreateBucketIfNotExists(fmt.Appendf(nil, "k8s.io/%d/sha256:x", id))
			if err != nil {
				return err
			}
			kind := byte(committed)
			if id == ofAContainer {
				kind = 2
			}
			if err := errors.Join(s.Put([]byte("kind"), []byte{kind}), s.Put([]byte("id"), binary.AppendUvarint(nil, id))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id, at := range layers {
		if at.IsZero() {
			continue
		}
		path := filepath.Join(dir, "snapshots", fmt.Sprint(id))
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
}

const ofAContainer = 3

func TestTornLayers(t *testing.T) {
	dir := t.TempDir()
	synced := time.Now().Add(-time.Hour)
	if torn, err := Torn(dir, 0, synced); torn != nil || err != nil {
		t.Errorf("nothing there: %v %v", torn, err)
	}
	snapshotter(t, dir, map[uint64]time.Time{1: synced.Add(-time.Hour), 2: synced.Add(time.Second), ofAContainer: synced.Add(time.Second), 4: {}, 5: synced.Add(-time.Hour)})
	for what, c := range map[string]struct {
		sure uint64
		at   time.Time
		want string
	}{
		"by the time: 2 is younger, 4 is missing":                 {0, synced, "[2 4]"},
		"by the number: 5 has the time of a clock that went back": {2, time.Time{}, "[4 5]"},
		"none is sure": {0, time.Time{}, "[1 2 4 5]"},
	} {
		torn, err := Torn(dir, c.sure, c.at)
		var got []string
		for _, layer := range torn {
			got = append(got, filepath.Base(layer))
		}
		slices.Sort(got)
		if fmt.Sprint(got) != c.want || err != nil {
			t.Errorf("%s: %v %v, want %s", what, got, err, c.want)
		}
	}
}

// TestAClockThatGoesBackHidesNoTornLayer follows the mark of synced layers over syncs. All layers have the same time.
func TestAClockThatGoesBackHidesNoTornLayer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Containerd{State: t.TempDir(), Run: t.TempDir()}
		root := filepath.Join(c.agentDir(), "containerd")
		dir := filepath.Join(root, filepath.Dir(snapshotFile))
		then := time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)
		has := func(layers ...uint64) {
			t.Helper()
			all := map[uint64]time.Time{}
			for _, id := range layers {
				all[id] = then
			}
			snapshotter(t, dir, all)
		}
		sync := func(after time.Duration, newest, sure uint64) {
			t.Helper()
			time.Sleep(after)
			if got, err := c.syncImages(); err != nil || got != newest {
				t.Fatalf("newest %d %v, want %d", got, err, newest)
			}
			if got, at := c.synced(root); got != sure || (sure == 0) == at.IsZero() {
				t.Errorf("layers are sure up to %d (%s), want %d", got, at, sure)
			}
		}
		has(1, 2)
		sync(0, 2, 0)
		has(4)
		sync(unsure/2, 4, 0)
		sync(unsure/2, 4, 2)
		if err := c.tornLayers(root); err == nil || !strings.HasPrefix(err.Error(), "1 layers") {
			t.Errorf("4 may be unpacked after the last sync: %v", err)
		}
		sync(syncPause, 4, 4)
		if err := c.tornLayers(root); err != nil {
			t.Error(err)
		}
		has(7, 8)
		if err := c.tornLayers(root); err == nil || !strings.HasPrefix(err.Error(), "2 layers") {
			t.Errorf("7 and 8 are not synced: %v", err)
		}
		if err := os.Remove(filepath.Join(root, syncedMark)); err != nil {
			t.Fatal(err)
		}
		if err := c.tornLayers(root); err != nil {
			t.Errorf("by the time of an earlier version: %v", err)
		}
	})
}

// TestWhatTheArchiveLacksIsKept: an image that came from a file is in the old folder alone.
func TestWhatTheArchiveLacksIsKept(t *testing.T) {
	for what, c := range map[string]struct {
		list func(path string) error
		kept bool
	}{
		"the list cannot be read": {func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }, true},
		"an image lacks a blob": {func(path string) error {
			return Save(path, []Image{{Name: "a:1", Digest: digest.FromString("a"), Kept: true}})
		}, true},
		"a registry has what lacks":   {func(path string) error { return Save(path, []Image{{Name: "a:1", Digest: digest.FromString("a")}}) }, false},
		"there is nothing to recover": {func(string) error { return nil }, false},
	} {
		d := &Containerd{State: t.TempDir(), Run: t.TempDir(), EndPods: func(context.Context) error { return nil }, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
		snapshotter(t, filepath.Join(d.agentDir(), "containerd", filepath.Dir(snapshotFile)), map[uint64]time.Time{1: {}}) // its layer is missing
		d.noted, d.syncAgain, d.wanted, d.sure, d.newest, d.newestAt = "a:1", time.Now(), 9, 9, 9, time.Now()
		if err := errors.Join(c.list(d.listFile()), d.Prepare(t.Context())); err != nil {
			t.Fatal(err)
		}
		if d.noted != "" || d.sure+d.wanted+d.newest != 0 || !d.newestAt.IsZero() || !d.syncAgain.IsZero() {
			t.Errorf("%s: what was known of the old layers is taken for the new", what)
		}
		for _, aside := range quarantine.List(d.agentDir()) {
			if _, err := os.Stat(filepath.Join(aside, lostFile)); err != nil {
				t.Errorf("%s: its blobs go when the rest is imported: %v", what, err)
			}
		}
		if aside := quarantine.List(d.agentDir()); (len(aside) == 1) != c.kept {
			t.Errorf("%s: %v is set aside", what, aside)
		}
	}
}
