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
	// quiet is how long nothing must happen to the file before it is read: an editor
	// takes several steps to save, and the last of them counts.
	quiet = 150 * time.Millisecond
	// every is how often the file is read without an event: of a link further up, which is
	// made to lead elsewhere, there is none.
	every = 10 * time.Second
)

// Watch calls changed whenever the file at path may be another: written, replaced,
// made, removed, or what a symbolic link on the way to it leads to. It returns when
// ctx ends, or with an error if the kernel cannot watch.
//
// The folder of the file is watched, not the file, because editors replace it and a volume of
// a ConfigMap moves a link beside it; and the folder of what it leads to. What is reported is
// a change of content: two looks that agree, quiet apart, and differ from what was reported last.
func Watch(ctx context.Context, path string, ready, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := follow(w, path); err != nil {
		return err
	}
	told := glanceAt(path) // before the caller reads it: what comes in between is news
	ready()
	seen := told
	timer := time.NewTimer(quiet) // something may have happened before the watch was there
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
				timer.Reset(quiet) // it may go on
			case is != told:
				told = is
				changed()
			}
		}
	}
}

// glance is what can be seen of the file.
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

// follow watches the folders that matter at this moment, and no others.
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

// folders returns the folder of the file and the folder of what it leads to; where one does
// not exist yet, the next one above it.
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
