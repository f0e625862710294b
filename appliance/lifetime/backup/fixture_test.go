package backup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/bolt"
)

const ours = "v1.35.0-k3s3"

var then = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// device makes the state of a device as the appliance leaves it, with the given
// node's name and so much of a datastore.
func device(t testing.TB, node string, revisions int) Paths {
	t.Helper()
	dir := t.TempDir()
	p := Paths{State: filepath.Join(dir, "state"), Config: filepath.Join(dir, "etc"), Node: filepath.Join(dir, "node")}
	for name, content := range map[string]string{
		"state/k3s/server/token":                         node + "'s token",
		"state/k3s/server/networks.json":                 node + "'s networks",
		"state/k3s/server/tls/server-ca.key":             node + "'s key",
		"state/k3s/server/tls/temporary-certs/x":         "of no use",
		"state/k3s/server/cred/admin.kubeconfig":         "made with the client certificate",
		"state/k3s/server/tls/client-admin.crt":          "made if it is not there",
		"state/k3s/server/tls/client-ca.crt":             "authority",
		"state/k3s/server/manifests/mine.yaml":           "user's",
		"state/k3s/server/manifests/rivulet-engine.yaml": "ours",
		"state/snapshots/datastore-x.db.zst":             node + "'s",
		"state/k3s/agent/client-ca.crt":                  node + "'s",
		"state/k3s/agent/images/x.tar":                   "image",
		"state/storage/default_data/file\nwith\"all":     node + "'s data",
		"state/k3s-node/password":                        node + "'s password",
		"etc/config.yaml":                                "# mine\nname: " + node + "\ntrust:\n  mode: lan\n",
		"etc/registries.yaml":                            "mirrors: {}\n",
	} {
		write(t, filepath.Join(dir, name), content)
	}
	must(t, os.Symlink(filepath.Join(p.State, "k3s-node"), p.Node))
	must(t, os.Symlink("token", filepath.Join(p.State, "k3s/server/node-token")))
	must(t, os.MkdirAll(filepath.Join(p.State, "k3s/server/db"), 0o700))
	engineDB(t, filepath.Join(p.State, "k3s/server/db/state.db"), node, revisions)
	st, err := bolt.Open(filepath.Join(p.State, storeName))
	must(t, err)
	must(t, st.PutNodeName(node))
	must(t, st.PutIdentity([]byte(node+"'s identity")))
	must(t, st.Close())
	return p
}

// engineDB makes a datastore as the engine does.
func engineDB(t testing.TB, path, value string, revisions int) {
	t.Helper()
	db, err := datastore.Open(path, "rwc")
	must(t, err)
	defer db.Close()
	for _, s := range []string{
		"PRAGMA journal_mode=WAL",
		`CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER,
			create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`,
		"CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision)",
		"INSERT INTO kine(name, created, deleted, prev_revision) VALUES('compact_rev_key', 1, 0, 0)",
	} {
		_, err := db.Exec(s)
		must(t, err)
	}
	for i := range revisions {
		_, err := db.Exec("INSERT INTO kine(name, created, deleted, prev_revision, value) VALUES(?, 1, 0, 0, ?)", fmt.Sprintf("/registry/%d", i), value)
		must(t, err)
	}
}

func source(p Paths, node string) Source {
	return Source{Paths: p, Volumes: true,
		Manifest: Manifest{Rivulet: "v1", Kubernetes: ours, Name: node, Node: node, ID: node + "-id", Arch: "amd64", Created: then},
		CopyStore: func(w io.Writer) error {
			st, err := bolt.Open(filepath.Join(p.State, storeName))
			if err != nil {
				return err
			}
			defer st.Close()
			_, err = st.WriteTo(w)
			return err
		}}
}

func save(t testing.TB, src Source) []byte {
	t.Helper()
	var out bytes.Buffer
	must(t, Write(context.Background(), &out, src))
	return out.Bytes()
}

// contents is everything below the device, for comparison.
func contents(t testing.TB, p Paths) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{p.State, p.Config} {
		err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasSuffix(at, ".lock") {
				return err
			}
			raw, err := os.ReadFile(at)
			name, _ := filepath.Rel(filepath.Dir(dir), at)
			out[name] = string(raw)
			return err
		})
		must(t, err)
	}
	return out
}

func same(t testing.TB, was, is map[string]string) {
	t.Helper()
	for name, content := range was {
		if is[name] != content {
			t.Errorf("%s changed", name)
		}
	}
	for name := range is {
		if _, ok := was[name]; !ok {
			t.Errorf("%s was left behind", name)
		}
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func read(t testing.TB, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return string(raw)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
