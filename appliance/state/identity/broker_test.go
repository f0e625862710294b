package identity

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A broker keeps its ID, and a file that is no key is not replaced.
func TestBroker(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	first, key, err := Broker(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, sameKey, err := Broker(dir)
	if err != nil || again.ID != first.ID || sameKey != key || !first.ID.Valid() {
		t.Errorf("%s, then %s %v", first.ID, again.ID, err)
	}
	path := filepath.Join(dir, "broker.key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if other, otherKey, err := Broker(t.TempDir()); err != nil || other.ID == first.ID || otherKey == key {
		t.Errorf("another broker has the same key, %v", err)
	}
	if err := os.WriteFile(path, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Broker(dir); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "no key" {
		t.Errorf("the file is %q %v", text, err)
	}
}
