package reset

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/peer"
)

// device makes a state folder as a used device has it.
func device(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	st, err := bolt.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.PutIdentity([]byte("me")); err != nil {
		t.Fatal(err)
	}
	if err := st.PutPeer(peer.Record{ID: "friend"}); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"k3s/server/db/state.db", "k3s/agent/x", "k3s-node/password", "kubeconfig", "storage/ns_claim/data", "bundle/abc/bin/runc", "log/engine.log"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func left(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// resetsTo resets the device twice, which has that identity and knows nobody then.
func resetsTo(t *testing.T, dir, identity string) {
	t.Helper()
	for range 2 {
		if _, err := State(dir, false); err != nil {
			t.Fatal(err)
		}
		names := slices.DeleteFunc(left(t, dir), func(n string) bool { return n == "state.db.copy" })
		if !slices.Equal(names, []string{"bundle", "state.db"}) {
			t.Errorf("left %q", names)
		}
	}
	st, err := bolt.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	id, err := st.Identity()
	peers, perr := st.Peers()
	if string(id) != identity || err != nil || len(peers) != 0 || perr != nil {
		t.Errorf("identity %q %v, peers %v %v", id, err, peers, perr)
	}
}

func TestResetKeepsWhoWeAre(t *testing.T) {
	dir := device(t)
	// As after a power cut in the middle of an earlier one.
	if err := os.MkdirAll(filepath.Join(dir, "k3s.removed", "server"), 0o755); err != nil {
		t.Fatal(err)
	}
	resetsTo(t, dir, "me")
}

// A server of a cluster with standbys leaves the cluster's identity to them.
func TestResetOfAServerWithStandbys(t *testing.T) {
	dir := device(t)
	if err := bolt.Create(paths.DeviceStore(dir), bolt.Content{Identity: []byte("my own"), Peers: map[string][]byte{"server": []byte(`{"id":"server"}`)}}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{paths.Gateway(dir), paths.Standby(dir)} {
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	resetsTo(t, dir, "my own")
}

func TestFactoryResetKeepsNothing(t *testing.T) {
	dir := device(t)
	if _, err := State(dir, true); err != nil {
		t.Fatal(err)
	}
	if names := left(t, dir); len(names) != 0 {
		t.Errorf("left %q", names)
	}
	if _, err := State(filepath.Join(dir, "never"), true); err != nil {
		t.Errorf("where nothing was: %v", err)
	}
}

// A damaged state.db cannot be told to forget; nothing is guessed.
func TestADamagedStateIsToldWithACure(t *testing.T) {
	dir := device(t)
	os.Remove(filepath.Join(dir, "state.db.copy"))
	if err := os.WriteFile(filepath.Join(dir, "state.db"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := State(dir, false); err == nil {
		t.Error("no error")
	}
	if _, err := State(dir, true); err != nil {
		t.Errorf("--factory is the cure, yet: %v", err)
	}
}
