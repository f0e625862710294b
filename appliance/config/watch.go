package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long the file must be unchanged before it is read: an editor saves in several steps, of which the
	// last counts.
	quiet = 150 * time.Millisecond
	// every is the interval of reads without an event: a change of a link further up causes none.
	every = 10 * time.Second
)

// Watch calls changed whenever the file at path may have changed: written, replaced, created, removed, or by a symbolic
// link on the way to it. It returns when ctx ends, or with an error if the kernel cannot watch.
//
// It watches the folder of the file, not the file, because editors replace it and a ConfigMap's volume moves a link
// beside it; and the folder of the link's target. It reports changes of content: two reads that agree, quiet apart, and
// differ from the last reported one.
func Watch(ctx context.Context, path string, ready, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := follow(w, path); err != nil {
		return err
	}
	told := glanceAt(path) // before the caller reads it, so that later changes are reported
	ready()
	seen := told
	timer := time.NewTimer(quiet) // a change may precede the watch
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-w.Errors:
			if !ok {
				return errors.New("config: the watch has ended")
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			timer.Reset(quiet)
		case _, ok := <-w.Events:
			if !ok {
				return errors.New("config: the watch has ended")
			}
			timer.Reset(quiet)
		case <-timer.C:
			if err := follow(w, path); err != nil {
				return err
			}
			timer.Reset(every)
			switch is := glanceAt(path); {
			case is != seen:
				seen = is
				timer.Reset(quiet) // there may be more
			case is != told:
				told = is
				changed()
			}
		}
	}
}

// glance is the observable state of the file.
type glance struct {
	there bool
	mode  fs.FileMode
	sum   [sha256.Size]byte
}

func glanceAt(path string) glance {
	data, mode, err := read(path)
	if err != nil {
		return glance{there: !errors.Is(err, fs.ErrNotExist), sum: sha256.Sum256([]byte(err.Error()))}
	}
	return glance{there: true, mode: mode, sum: sha256.Sum256(data)}
}

// follow watches the relevant folders, and no others.
func follow(w *fsnotify.Watcher, path string) error {
	want := folders(path)
	for _, dir := range w.WatchList() { // without those that were removed or moved away
		if !want[dir] {
			_ = w.Remove(dir) // it may be gone with its folder
		}
		delete(want, dir)
	}
	for dir := range want {
		if err := w.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// folders returns the folder of the file and that of its target; for a missing one the next existing one above it.
func folders(path string) map[string]bool {
	out := map[string]bool{}
	files := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		files = append(files, real)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		for info, err := os.Stat(dir); (err != nil || !info.IsDir()) && dir != filepath.Dir(dir); info, err = os.Stat(dir) {
			dir = filepath.Dir(dir)
		}
		out[dir] = true
	}
	return out
}
