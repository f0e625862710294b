package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/engine"
)

// A peer that has data here, or of which nobody can tell, is not sent away without a word; with --force it is,
// and so is one that has none.
func TestUnpeerNamesTheDataOfTenants(t *testing.T) {
	claims, silent := `{"metadata": {"name": "data-0a1b2c"}}`, ""
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case silent:
			http.Error(w, "the datastore is busy", http.StatusInternalServerError)
		case "/api/v1/persistentvolumes":
			fmt.Fprint(w, `{"kind": "PersistentVolumeList", "apiVersion": "v1", "items": []}`)
		case "/api/v1/namespaces":
			if got, want := r.URL.Query().Get("labelSelector"), "rivulet.dev/origin="+strings.Repeat("b", 32); got != want {
				t.Errorf("namespaces by %s, want %s", got, want)
			}
			fmt.Fprint(w, `{"kind": "NamespaceList", "apiVersion": "v1", "items": [{"metadata": {"name": "lab-b-bbbbbbbb"}}]}`)
		case "/api/v1/namespaces/lab-b-bbbbbbbb/persistentvolumeclaims":
			fmt.Fprintf(w, `{"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "items": [%s]}`, claims)
		default:
			http.NotFound(w, r)
		}
	}))
	defer apiServer.Close()
	dir := t.TempDir()
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters: [{name: default, cluster: {server: %q}}]\ncontexts: [{name: default, context: {cluster: default, user: default}}]\nusers: [{name: default, user: {token: x}}]\n", apiServer.URL)
	if err := os.WriteFile(engine.Kubeconfig(dir), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	supervise(t, filepath.Join(dir, "rivulet.sock"), map[string]json.RawMessage{
		"GET /v1/status":        json.RawMessage(`{"consumers": [{"id": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "name": "b", "peer": true}]}`),
		"POST /v1/peers/unpeer": json.RawMessage(`{"id": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "name": "b"}`),
	})
	for _, name := range []string{"b", "bbbbbbbb"} {
		_, out, err := execute(t, dir, []string{"unpeer", name})
		if err == nil || !strings.Contains(err.Error(), "b has data here, in lab-b-bbbbbbbb/data-0a1b2c, and would lose them") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("unpeer %s: %v, %s", name, err, out)
		}
	}
	if _, out, err := execute(t, dir, []string{"unpeer", "b", "--force"}); err != nil || !strings.Contains(out, "no peer any more") {
		t.Errorf("with --force: %v, %s", err, out)
	}
	claims = ""
	if _, out, err := execute(t, dir, []string{"unpeer", "b"}); err != nil || !strings.Contains(out, "no peer any more") {
		t.Errorf("without data: %v, %s", err, out)
	}
	for _, path := range []string{"/api/v1/persistentvolumes", "/api/v1/namespaces", "/api/v1/namespaces/lab-b-bbbbbbbb/persistentvolumeclaims"} {
		silent = path
		if _, out, err := execute(t, dir, []string{"unpeer", "b"}); err == nil || !strings.Contains(err.Error(), "cannot be told") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("while %s is not answered: %v, %s", path, err, out)
		}
	}
}

// Flags of rivulet before the name of a tool, or right after it, are rivulet's; the others are the tool's.
func TestFlagsBeforeATool(t *testing.T) {
	for line, want := range map[string]string{
		"kubectl get pods":                                  "get pods|/default",
		"--state /s kubectl get pods":                       "get pods|/s",
		"--state=/s --runtime /r kubectl -n x get":          "-n x get|/s",
		"kubectl --state=/s get pods --state /t":            "get pods --state /t|/s",
		"--runtime=/r ctr images ls":                        "images ls|/default",
		"--state /s crictl --runtime-endpoint unix:///x ps": "--runtime-endpoint unix:///x ps|/s",
	} {
		t.Setenv("RIVULET_STATE", "/default")
		root := newRoot("engine")
		cmd, args, err := root.Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(args); err != nil { // as cobra does: it adds those that are inherited
			t.Fatal(err)
		}
		rest, err := ownFlags(cmd, args)
		state := cmd.InheritedFlags().Lookup("state").Value
		if got := strings.Join(rest, " ") + "|" + state.String(); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", line, got, err, want)
		}
	}
	_, _, err := execute(t, t.TempDir(), []string{"kubectl", "--state"})
	if exitCode(err) != exitUsage {
		t.Errorf("a flag without a folder: %v", err)
	}
}

// Where data have come to is said as one says it.
func TestMoved(t *testing.T) {
	for to, want := range map[string]string{"home": "the data of lab/data are at home\n", "b": "the data of lab/data are on b\n"} {
		var out bytes.Buffer
		line := fmt.Sprintf(`{"namespace": "lab", "claim": "data", "to": %q, "over": true}`, to)
		if err := (&common{}).showMove(&out, strings.NewReader(line)); err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("%s: %q, %v", to, out.String(), err)
		}
	}
}
