package engine

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
)

// tree writes k3s's files: names ending in ! are torn in one of the ways that
// power cuts tear.
func tree(t *testing.T, dir string, names ...string) {
	t.Helper()
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	tears := [][]byte{{}, make([]byte, 512), good[:len(good)-9]}
	for i, name := range names {
		content := good
		if n, torn := strings.CutSuffix(name, "!"); torn {
			name, content = n, tears[i%len(tears)]
		}
		if strings.HasSuffix(name, "config") && len(content) == len(good) {
			content = []byte("apiVersion: v1\n")
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func files(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTornFilesAreRemovedWithTheirOtherHalves(t *testing.T) {
	e := New(testConfig(t))
	dir := e.DataDir()
	tree(t, dir, "server/tls/server-ca.crt", "server/tls/server-ca.key", "server/tls/service.key",
		"server/tls/client-admin.crt!", "server/tls/client-admin.key", "server/tls/serving.crt", "server/tls/serving.key!",
		"server/tls/temporary-certs/loopback.crt!", "server/tls/temporary-certs/loopback.key",
		"server/tls/etcd/peer.crt", "agent/client-kubelet.crt!", "agent/client-kubelet.key", "agent/kubelet.kubeconfig!",
		"agent/containerd/blob.key!", "agent/ok.kubeconfig")
	if err := e.repairTorn(); err != nil {
		t.Fatal(err)
	}
	want := []string{"agent/containerd/blob.key", "agent/ok.kubeconfig", "server/tls/etcd/peer.crt",
		"server/tls/server-ca.crt", "server/tls/server-ca.key", "server/tls/service.key"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
}

func TestTornAuthority(t *testing.T) {
	e := New(testConfig(t))
	tree(t, e.DataDir(), "server/tls/server-ca.crt", "server/tls/server-ca.key!", "server/db/state.db", "agent/client-kubelet.crt")
	if err := e.repairTorn(); err != nil {
		t.Fatalf("before the cluster ever served: %v", err)
	}
	if got := files(t, e.DataDir()); slices.Contains(got, "server/db/state.db") || !slices.Contains(got, "agent/client-kubelet.crt") {
		t.Errorf("%q", got)
	}
	if aside := quarantine.List(e.DataDir()); len(aside) != 1 || !slices.Contains(files(t, aside[0]), "db/state.db") {
		t.Errorf("set aside are %v", aside)
	}
	tree(t, e.DataDir(), "server/tls/service.key!", "server/db/state.db")
	if err := e.Settle(); err != nil {
		t.Fatal(err)
	}
	err := e.repairTorn()
	if !errors.Is(err, ErrKeysLost) || !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("a cluster that has served: %v, want ErrKeysLost with a cure", err)
	}
	if got := files(t, e.DataDir()); !slices.Contains(got, "server/db/state.db") {
		t.Errorf("the cluster was thrown away: %q", got)
	}
}

// TestARestoredClusterIsNotBegunAnew: the power is cut at the first start after a restore on a new device.
func TestARestoredClusterIsNotBegunAnew(t *testing.T) {
	e := New(testConfig(t))
	tree(t, e.DataDir(), "server/tls/server-ca.key!", "server/db/state.db")
	if err := os.WriteFile(paths.Settled(e.cfg.StateDir), nil, 0o600); err != nil { // as a restore does
		t.Fatal(err)
	}
	for what, err := range map[string]error{"torn keys": e.repairTorn(), "a lost datastore": e.BeginAnew("no snapshot")} {
		if !errors.Is(err, ErrKeysLost) {
			t.Errorf("%s: %v, want ErrKeysLost", what, err)
		}
	}
	if got := files(t, e.DataDir()); !slices.Contains(got, "server/db/state.db") {
		t.Errorf("the restored cluster was thrown away: %q", got)
	}
}

func TestTornPassword(t *testing.T) {
	for content, lost := range map[string]bool{"": true, "0123456789abcdef0123456789abcdef\n": false, "\x00\x00": true, "0123": true} {
		e := New(testConfig(t))
		tree(t, e.cfg.StateDir, "k3s-node/x.crt")
		path := filepath.Join(e.cfg.StateDir, "k3s-node/password")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := e.repairPassword(); err != nil || e.passwordLost != lost {
			t.Errorf("%q: lost %v, %v", content, e.passwordLost, err)
		}
		if _, err := os.Stat(path); (err == nil) == lost {
			t.Errorf("%q: %v", content, err)
		}
	}
}
