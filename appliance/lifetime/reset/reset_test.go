package reset

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
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
	beside(t, dir)
	resetsTo(t, dir, "my own")
}

// beside adds those files that decide the device's role which it has not.
func beside(t *testing.T, dir string) {
	t.Helper()
	for _, file := range role.Files(dir) {
		if _, err := os.Stat(file); err == nil || file == bolt.CopyOf(paths.DeviceStore(dir)) {
			continue
		}
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A device that joins another cluster keeps, of the files that decide its role, only the one that names its server.
func TestOfAServerThatJoinsItsNewServerStays(t *testing.T) {
	dir := device(t)
	if err := bolt.Create(paths.DeviceStore(dir), bolt.Content{Identity: []byte("my own")}); err != nil {
		t.Fatal(err)
	}
	beside(t, dir)
	if _, err := Worker(dir, "server"); err != nil {
		t.Fatal(err)
	}
	for _, file := range role.Files(dir) {
		if _, err := os.Stat(file); (err == nil) != (file == paths.Worker(dir)) {
			t.Errorf("%s: %v", file, err)
		}
	}
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

// A service manager has started rivulet again: nothing of what it uses goes.
func TestNothingGoesUnderASupervisor(t *testing.T) {
	dir := device(t)
	before := left(t, dir)
	holder := exec.Command("sh", "-c", `exec 3<"$1"; echo up; read x`, "sh", filepath.Join(dir, "state.db"))
	in, err := holder.StdinPipe()
	out, oerr := holder.StdoutPipe()
	if err := errors.Join(err, oerr, holder.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); holder.Wait() })
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	for _, factory := range []bool{false, true} {
		if _, err := State(dir, factory); err == nil || !strings.Contains(err.Error(), "systemctl stop rivulet") {
			t.Errorf("factory %v: %v", factory, err)
		}
	}
	if now := left(t, dir); !slices.Equal(now, before) {
		t.Errorf("there is %q, want %q", now, before)
	}
}
