package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
)

// call runs a verb with folders of its own and a supervisor that has the status.
func call(t *testing.T, st api.Status, args string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "rivulet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(st); err != nil {
			t.Error(err)
		}
	})}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	var out bytes.Buffer
	root := newRoot("engine")
	root.SetOut(&out)
	root.SetArgs(append([]string{"--state", dir, "--runtime", dir}, strings.Fields(args)...))
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

// A target that there is not, and a namespace that is the cluster's own, are mistakes.
func TestOffloadWhatThereIsNot(t *testing.T) {
	st := api.Status{Peers: []peer.View{
		{Record: peer.Record{Name: "b"}, State: peer.Lost},
		{Record: peer.Record{Name: "stranger"}, State: peer.Discovered},
	}}
	for args, want := range map[string]string{
		"offload lab --to nosuch":   "no peer or burst target nosuch, only: b",
		"offload lab --to stranger": "no peer or burst target stranger, only: b",
		"offload kube-system":       "is the cluster's own and stays at home",
		"offload lab --to b":        "there is no cluster here yet; see: rivulet status", // the API server's turn
	} {
		if _, err := call(t, st, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// kubectl without a cluster to talk to has a cure, and not the one of localhost:8080.
func TestKubectlWithoutACluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	os.Unsetenv("KUBECONFIG")
	if _, err := call(t, api.Status{}, "kubectl get pods"); err == nil || !strings.Contains(err.Error(), "there is no cluster here yet; see: rivulet status") {
		t.Error(err)
	}
	for args, want := range map[string]bool{"": true, "--help": true, "version --client": true, "get pods --kubeconfig=x": true, "get pods": false} {
		if got := local(strings.Fields(args)); got != want {
			t.Errorf("%q: %v", args, got)
		}
	}
}

// A backup takes no other file's place unless it is told to.
func TestBackupKeepsWhatIsThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(file, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, api.Status{}, "backup "+file); err == nil || !strings.Contains(err.Error(), "is there already; give another name, or replace it with --force") {
		t.Error(err)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "another" {
		t.Error(string(raw), err)
	}
}
