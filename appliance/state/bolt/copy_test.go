package bolt

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

// Whatever happens to the store, everything acknowledged is there after Recover;
// the damaged file is kept.
func TestRecoverHasAllThatWasAcknowledged(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "state.db")
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		want := map[peer.ID]bool{}
		for _, n := range rapid.SliceOfN(rapid.IntRange(-20, 20), 1, 12).Draw(rt, "puts and deletes") {
			id := peer.ID(strings.Repeat("p", max(n, -n)+1))
			if n < 0 {
				err = s.DeletePeer(id)
				delete(want, id)
			} else {
				err = s.PutPeer(peer.Record{ID: id, Certificate: make([]byte, 50*n)})
				want[id] = true
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
		damage := rapid.SampledFrom([]string{"garbage", "empty", "cut off", "gone", "a folder"}).Draw(rt, "damage")
		hurt(t, path, damage)

		_, err = Open(path)
		if damage == "a folder" {
			if err == nil || errors.Is(err, ErrDamaged) {
				rt.Fatalf("a folder in its place: %v", err)
			}
			return // somebody's mistake, not damage: nothing to recover
		}
		if !errors.Is(err, ErrDamaged) {
			rt.Fatalf("%s: %v, want ErrDamaged", damage, err)
		}
		r, err := Recover(path, err)
		if err != nil {
			rt.Fatal(err)
		}
		if r.Peers != len(want) || r.Written.IsZero() {
			rt.Errorf("%+v, want %d peers", r, len(want))
		}
		if _, err := os.Stat(r.Aside); (err == nil) != (damage != "gone") {
			rt.Errorf("set aside %q: %v", r.Aside, err)
		}
		if s, err = Open(path); err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		got, err := s.Peers()
		if err != nil || len(got) != len(want) {
			rt.Fatalf("%d peers, want %d (%v)", len(got), len(want), err)
		}
		for _, r := range got {
			if !want[r.ID] {
				rt.Errorf("%s was not stored", r.ID)
			}
		}
	})
}

func hurt(t *testing.T, path, damage string) {
	t.Helper()
	var err error
	switch damage {
	case "garbage":
		err = os.WriteFile(path, []byte(strings.Repeat("garbage ", 9000)), 0o600)
	case "empty":
		err = os.Truncate(path, 0)
	case "cut off":
		err = os.Truncate(path, int64(os.Getpagesize()+17))
	case "gone":
		err = os.Remove(path)
	case "a folder":
		if err = os.Remove(path); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestACopyThatIsNoBetterChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	hurt(t, path, "garbage")
	before, _ := os.ReadDir(filepath.Dir(path))
	_, cause := Open(path)
	for _, damage := range []string{"cut off", "empty", "garbage"} {
		hurt(t, CopyOf(path), damage)
		if _, err := Recover(path, cause); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "no better") {
			t.Errorf("%s: %v", damage, err)
		}
	}
	if after, _ := os.ReadDir(filepath.Dir(path)); len(after) != len(before) {
		t.Errorf("%v, before %v", after, before)
	}
	if err := os.Remove(CopyOf(path)); err != nil {
		t.Fatal(err)
	}
	if _, err := Recover(path, cause); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "no copy") {
		t.Errorf("%v", err)
	}
}

// A copy that cannot be written is no error of the write, is told, and mended by
// the next one; a peer that was sent away must not be left in it.
func TestCopyThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	block := CopyOf(path) + ".new"
	if err := os.MkdirAll(filepath.Join(block, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.PutPeer(peer.Record{ID: "a"}); err != nil {
		t.Errorf("the store itself is sound, yet %v", err)
	}
	if s.CopyError() == nil {
		t.Error("nothing is said of the copy")
	}
	if err := s.DeletePeer("a"); err == nil {
		t.Error("a peer is gone from the store only, and nothing is said")
	}
	if err := os.RemoveAll(block); err != nil {
		t.Fatal(err)
	}
	if err := s.PutNote("n", []byte("x")); err != nil || s.CopyError() != nil {
		t.Errorf("%v %v", err, s.CopyError())
	}
}
