package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watched runs Watch and returns what there was to see whenever it told of a change.
func watched(t *testing.T, path string) (told chan glance) {
	t.Helper()
	told = make(chan glance, 100)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Watch(ctx, path, func() { close(ready) }, func() { told <- glanceAt(path) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("the watch does not begin")
	}
	return told
}

// expect waits until what there is now was told. On a machine that is busy with other
// things a step in between may have been told, too.
func expect(t *testing.T, told chan glance, path, what string) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case seen := <-told:
			if seen == glanceAt(path) {
				return
			}
		case <-limit:
			t.Fatalf("%s was not told", what)
		}
	}
}

// All the ways in which a file becomes another one.
func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etc", "rivulet", "config.yaml")
	up := filepath.Dir(filepath.Dir(path))
	if err := os.Mkdir(up, 0o755); err != nil {
		t.Fatal(err)
	}
	told := watched(t, path)
	write := func(text string) { put(t, path, text) }
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"the folder and the file are made", func() error { write("1"); return nil }},
		{"written in place", func() error { write("2"); return nil }},
		{"appended to in several steps", func() error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			for range 20 {
				_, werr := f.WriteString("x")
				err = errors.Join(err, werr)
			}
			return errors.Join(err, f.Close())
		}},
		{"replaced, as vim and sed do", func() error { put(t, path+".tmp", "3"); return os.Rename(path+".tmp", path) }},
		{"moved away and written anew, as vim does with backupcopy=no", func() error {
			if err := os.Rename(path, path+"~"); err != nil {
				return err
			}
			write("4")
			return nil
		}},
		{"permissions", func() error { return os.Chmod(path, 0o640) }},
		{"removed", func() error { return os.Remove(path) }},
		{"the folder is removed and made anew", func() error {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				return err
			}
			write("5")
			return nil
		}},
		{"a folder in its place", func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }},
		{"a file again", func() error { err := os.Remove(path); write("6"); return err }},
		{"a link to elsewhere", func() error {
			put(t, filepath.Join(up, "other"), "7")
			return errors.Join(os.Remove(path), os.Symlink("../other", path))
		}},
		{"what the link leads to is written", func() error { put(t, filepath.Join(up, "other"), "8"); return nil }},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		expect(t, told, path, step.what)
	}
}

// A volume of a ConfigMap: config.yaml -> ..data/config.yaml, ..data -> a folder that
// is replaced in one step.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	publish := func(version, text string) {
		t.Helper()
		put(t, filepath.Join(dir, version, "config.yaml"), text)
		if err := errors.Join(os.Symlink(version, filepath.Join(dir, "..tmp")), os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", "one")
	if err := os.Symlink("..data/config.yaml", path); err != nil {
		t.Fatal(err)
	}
	told := watched(t, path)
	for i, text := range []string{"two", "three", "four"} {
		publish("..2"+text, text)
		expect(t, told, path, text)
		if i == 1 {
			if err := os.RemoveAll(filepath.Join(dir, "..1")); err != nil { // old versions go
				t.Fatal(err)
			}
		}
	}
}

// A link further up, in a folder that nothing watches, is made to lead elsewhere.
func TestWatchLinkFurtherUp(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "site")
	lead := func(to string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, link+"~"), os.Rename(link+"~", link)); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(dir, "one", "etc", "config.yaml"), "1")
	put(t, filepath.Join(dir, "two", "etc", "config.yaml"), "2")
	lead("one")
	path := filepath.Join(link, "etc", "config.yaml")
	told := watched(t, path)
	lead("two")
	expect(t, told, path, "the link")
	put(t, filepath.Join(dir, "two", "etc", "config.yaml"), "3")
	expect(t, told, path, "what it leads to")
}

// What is not another content is not told: the same saved again, a neighbour in the folder.
func TestWatchTellsOnlyNews(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	put(t, path, "same")
	told := watched(t, path)
	put(t, path, "same")
	put(t, filepath.Join(filepath.Dir(path), "neighbour"), "x")
	put(t, path, "other") // a change for certain: what came before it would be told first
	expect(t, told, path, "the change")
	select {
	case <-told:
		t.Error("told twice")
	case <-time.After(3 * quiet): // nothing more may come in this time
	}
}

func TestFolders(t *testing.T) {
	dir := t.TempDir()
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	put(t, filepath.Join(dir, "real", "sub", "file"), "1")
	if err := errors.Join(os.Symlink("real", filepath.Join(dir, "link")),
		os.Symlink("a", filepath.Join(dir, "b")), os.Symlink("b", filepath.Join(dir, "a"))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"real/sub/x": {"real/sub"}, "none/sub/x": {""}, "link/sub/x": {"link/sub"}, "link/sub/file": {"link/sub", "real/sub"}, "a": {""},
	} {
		got := folders(filepath.Join(dir, path))
		ok := len(got) == len(want)
		for _, w := range want {
			ok = ok && got[filepath.Join(dir, w)]
		}
		if !ok {
			t.Errorf("%s: %v, want %q below %s", path, got, want, dir)
		}
	}
}
