package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fail makes one step fail, for as long as the test runs.
func fail(t *testing.T, at string, with error) (met *bool) {
	t.Helper()
	met = new(bool)
	Failpoint = func(step, _ string) error {
		if step != at {
			return nil
		}
		*met = true
		return with
	}
	t.Cleanup(func() { Failpoint = nil })
	return met
}

// files is what lies in a folder: names, contents and modes.
func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		fi, serr := e.Info()
		if err := errors.Join(err, serr); err != nil {
			t.Fatal(err)
		}
		out = append(out, e.Name()+" "+string(raw)+" "+fi.Mode().String())
	}
	return strings.Join(out, ", ")
}

const (
	oldFile = "file old -rw-r--r--"
	newFile = "file new -rw-------"
)

// Whatever step fails, the old file or the new one is there, whole and with its mode,
// and no other; after a cut a part lies beside it, which the next write removes.
func TestEveryStepMayFail(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		at           string
		failed, left string // what is there after an error, after a cut
	}{
		{Create, oldFile, oldFile},
		{Content, oldFile, oldFile + ", file.new  -rw-------"},
		{Sync, oldFile, oldFile + ", file.new new -rw-------"},
		{Renaming, oldFile, oldFile + ", file.new new -rw-------"},
		{SyncFolder, newFile, newFile},
	} {
		for err, want := range map[error]string{broken: c.failed, ErrCut: c.left} {
			t.Run(c.at+" "+err.Error(), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "file")
				if err := Write(path, []byte("old"), 0o644); err != nil {
					t.Fatal(err)
				}
				met := fail(t, c.at, err)
				if got := Write(path, []byte("new"), 0o600); !*met || !errors.Is(got, err) {
					t.Fatalf("error %v", got)
				}
				if got := files(t, filepath.Dir(path)); got != want {
					t.Errorf("%s; want %s", got, want)
				}
				Failpoint = nil
				if err := Write(path, []byte("new"), 0o600); err != nil || files(t, filepath.Dir(path)) != newFile {
					t.Errorf("once more: %v, %s", err, files(t, filepath.Dir(path)))
				}
			})
		}
	}
}

func TestAFillThatFailsLeavesTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Write(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no more")
	err := Replace(path, 0o600, func(f *os.File) error {
		if _, err := f.WriteString("half"); err != nil {
			return err
		}
		return full
	})
	if got := files(t, filepath.Dir(path)); err.Error() != "no more" || got != oldFile {
		t.Errorf("%v, %s", err, got)
	}
}

func TestAnotherCure(t *testing.T) {
	own := errors.New("no more; ask again")
	for err, want := range map[error]string{
		Cure(errors.New("the disk is full")): "the disk is full; take another",
		errors.Join(Cure(fs.ErrPermission)):  "permission denied; take another",
		own:                                  "no more; ask again",
	} {
		if got := WithCure(err, "take another"); got.Error() != want || !errors.Is(got, errors.Unwrap(got)) && got != own { //nolint:errorlint // this very error
			t.Errorf("%v, want %s", got, want)
		}
	}
	if err := WithCure(nil, "x"); err != nil {
		t.Error(err)
	}
}

func TestWhatIsTheSameIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, c := range []struct {
		content string
		mode    fs.FileMode
		written bool
	}{{"a", 0o600, true}, {"a", 0o600, false}, {"a", 0o644, true}, {"b", 0o644, true}, {"b", 0o644, false}} {
		met := fail(t, "", nil)
		Failpoint = func(string, string) error { *met = true; return nil }
		if err := Write(path, []byte(c.content), c.mode); err != nil || *met != c.written {
			t.Errorf("%s %v: %v, written %v", c.content, c.mode, err, *met)
		}
	}
}

func TestRenameAndRemove(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	if err := Write(filepath.Join(a, "file"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	var steps []string
	Failpoint = func(step, path string) error { steps = append(steps, step+" "+filepath.Base(path)); return nil }
	t.Cleanup(func() { Failpoint = nil })
	if err := Rename(filepath.Join(a, "file"), filepath.Join(b, "file")); err != nil || files(t, a) != "" || files(t, b) != oldFile {
		t.Errorf("renamed: %v, %q, %q", err, files(t, a), files(t, b))
	}
	for range 2 {
		if err := Remove(filepath.Join(b, "file")); err != nil || files(t, b) != "" {
			t.Errorf("removed: %v, %q", err, files(t, b))
		}
	}
	want := "rename file,sync folder " + filepath.Base(b) + ",sync folder " + filepath.Base(a) + ",remove file,sync folder " + filepath.Base(b)
	if got := strings.Join(steps, ","); got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
	for at, do := range map[string]func(string) error{Renaming: func(p string) error { return Rename(p, p+"2") }, Removing: Remove} {
		path := filepath.Join(a, "file")
		if err := Write(path, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		fail(t, at, fs.ErrPermission)
		if err := do(path); !errors.Is(err, fs.ErrPermission) || !strings.HasSuffix(err.Error(), "; look at the disk (space, read-only mount)") {
			t.Errorf("%s: %v", at, err)
		}
		Failpoint = nil
		if files(t, a) != oldFile {
			t.Errorf("%s: %s", at, files(t, a))
		}
	}
}
