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
	// maxLinks bounds a chain of symbolic links, as the kernel does.
	maxLinks = 40
)

// Watch calls changed whenever the file at path may be another: written, replaced,
// made, removed, or what a symbolic link on the way to it leads to. It returns when
// ctx ends, or with an error if the kernel cannot watch.
//
// Folders are watched, not the file: editors replace it, and a volume of a ConfigMap
// moves a link further up. What is told is a change of content: two looks that agree,
// quiet apart, and differ from what was told last.
func Watch(ctx context.Context, path string, ready, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	watched := map[string]bool{}
	if err := follow(w, watched, path); err != nil {
		return err
	}
	told := look(path) // before the caller reads it: what comes in between is news
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
			if err := follow(w, watched, path); err != nil {
				return err
			}
			timer.Reset(quiet)
		case <-timer.C:
			switch is := look(path); {
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

func look(path string) glance {
	data, mode, err := read(path)
	if err != nil {
		return glance{there: !errors.Is(err, fs.ErrNotExist), sum: sha256.Sum256([]byte(err.Error()))}
	}
	return glance{there: true, mode: mode, sum: sha256.Sum256(data)}
}

// follow watches the folders on the way to path, and no others. What is made while a
// watch is set is told by none: it looks again until nothing more is to be watched.
func follow(w *fsnotify.Watcher, watched map[string]bool, path string) error {
	for range maxLinks {
		more, err := followNow(w, watched, path)
		if err != nil || !more {
			return err
		}
	}
	return nil // it changes as fast as we look: there are events to come
}

// followNow sets the watches by one look, and reports whether there is a new one.
func followNow(w *fsnotify.Watcher, watched map[string]bool, path string) (more bool, err error) {
	want := folders(path)
	for dir := range watched {
		if !want[dir] {
			_ = w.Remove(dir) // it may be gone with its folder
			delete(watched, dir)
		}
	}
	have := map[string]bool{}
	for _, dir := range w.WatchList() { // the kernel drops what is removed or moved away
		have[dir] = true
	}
	for dir := range want {
		if watched[dir] && have[dir] {
			continue
		}
		if err := w.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		watched[dir], more = true, true
	}
	return more, nil
}

// folders returns those in which something can happen that makes path another file:
// of every link on the way, and of the file itself; where a folder does not exist
// yet, the next one above it.
func folders(path string) map[string]bool {
	out := map[string]bool{}
	add := func(dir string) {
		for {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				out[dir] = true
				return
			}
			up := filepath.Dir(dir)
			if up == dir {
				return
			}
			dir = up
		}
	}
	rest := path
	for range maxLinks {
		add(filepath.Dir(rest))
		link, at := firstLink(rest)
		if link == "" {
			break
		}
		add(filepath.Dir(link))
		if !filepath.IsAbs(at) {
			at = filepath.Join(filepath.Dir(link), at)
		}
		rest = at + rest[len(link):]
	}
	return out
}

// firstLink returns the first part of path that is a symbolic link, and where it leads.
func firstLink(path string) (link, to string) {
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		if to, err := os.Readlink(path[:i]); err == nil {
			return path[:i], to
		}
	}
	return "", ""
}
