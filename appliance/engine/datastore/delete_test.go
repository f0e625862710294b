package datastore

import (
	"bytes"
	"path/filepath"
	"testing"
)

func TestDeleteIsARevisionLikeAnyOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db", "state.db")
	if n, err := Delete(t.Context(), path, "/", nil); n != 0 || err != nil {
		t.Fatalf("no database: %d, %v", n, err)
	}
	fill(t, path, 1, 40)
	db, err := Open(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// Key 7 is changed, so that its highest revision is 41; 8 is deleted already, in 42.
	must(t, db, "INSERT INTO kine("+columns+") SELECT 41, name, 0, 0, id, id, 0, 'new', value FROM kine WHERE id = 7")
	must(t, db, "INSERT INTO kine("+columns+") SELECT 42, name, 0, 1, id, id, 0, value, value FROM kine WHERE id = 8")
	match := func(key string, value []byte) bool {
		if filepath.Base(key) == "7" && !bytes.Equal(value, []byte("new")) {
			t.Errorf("asked about an old revision of %s: %q", key, value)
		}
		if filepath.Base(key) == "8" {
			t.Error("asked about a key that is deleted")
		}
		return filepath.Base(key) == "7" || filepath.Base(key) == "9"
	}
	n, err := Delete(t.Context(), path, "/registry/pods/", match)
	if err != nil || n != 2 {
		t.Fatalf("deleted %d, %v; want 2", n, err)
	}
	for _, want := range []struct{ id, created, prev int }{{43, 9, 9}, {44, 7, 41}} {
		var name string
		var deleted, created, prev int
		if err := db.QueryRow("SELECT name, deleted, create_revision, prev_revision FROM kine WHERE id = ?", want.id).Scan(&name, &deleted, &created, &prev); err != nil {
			t.Fatal(err)
		}
		if deleted != 1 || created != want.created || prev != want.prev {
			t.Errorf("revision %d: %s deleted %d, created in %d, before in %d; want %+v", want.id, name, deleted, created, prev, want)
		}
	}
	if n, err := Delete(t.Context(), path, "/registry/pods/", match); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	if n, err := Delete(t.Context(), path, "/registry/", nil); err != nil || n != 36 {
		t.Errorf("the rest: %d, %v; want 36", n, err)
	}
	if n, err := Delete(t.Context(), path, "/bootstrap/", nil); err != nil || n != 0 {
		t.Errorf("none: %d, %v", n, err)
	}
}
