package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"rivulet/appliance/api"
)

// One command makes a folder of files that their owner alone reads, each of a key of its own, and replaces
// none unless that is said; or links, whose tokens programs get, too.
func TestKubeconfigsOfVirtualClusters(t *testing.T) {
	dir := t.TempDir()
	answers := map[string]json.RawMessage{
		"GET /v1/vclusters":   json.RawMessage(`[{"name": "ann", "address": "100.127.0.1:17000"}, {"name": "ben", "address": "100.127.0.1:17001"}]`),
		"GET /v1/kubeconfigs": json.RawMessage(`{"kubeconfigs": [{"user": "eve", "vcluster": "ann", "state": "active"}]}`),
		"POST /v1/kubeconfigs": json.RawMessage(`{"user": "u", "role": "edit", "vcluster": "ann", "made": "2026-01-02T03:04:05Z", "expires": "2026-02-01T03:04:05Z", "state": "active",
			"cluster": "lab-1", "servers": ["https://192.0.2.7:7442"], "serverName": "kubernetes.rivulet", "authority": "eA==", "link": "2026-01-09T03:04:05Z", "pin": "cGlu"}`),
	}
	supervise(t, filepath.Join(dir, "rivulet.sock"), answers)
	at := func(args ...string) (string, error) {
		cmd, out := newRoot("engine"), new(strings.Builder)
		cmd.SetOut(out)
		cmd.SetErr(out)
		cmd.SetArgs(append(args, "--runtime", dir))
		err := cmd.Execute()
		return out.String(), err
	}
	class := filepath.Join(dir, "class")
	if out, err := at("vcluster", "kubeconfig", "--all", "--dir", class, "--role", "edit", "--for", "8w"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	keys := map[string]bool{}
	for _, name := range []string{"ann", "ben"} {
		file := filepath.Join(class, name+".kubeconfig")
		st, err := os.Stat(file)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v %v", file, st, err)
		}
		cfg, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil || cfg.Host != "https://192.0.2.7:7442" || cfg.ServerName != "kubernetes.rivulet" {
			t.Errorf("%s: %v %v", name, cfg, err)
		}
		keys[string(cfg.KeyData)] = true
	}
	if len(keys) != 2 {
		t.Errorf("%d keys of two users", len(keys))
	}
	if _, err := at("vcluster", "kubeconfig", "a*", "--dir", class); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a second time: %v", err)
	}
	late := filepath.Join(dir, "late")
	answers["GET /v1/kubeconfigs"] = json.RawMessage(`{"kubeconfigs": [{"user": "ann", "vcluster": "ann", "state": "active"}]}`)
	if out, err := at("vcluster", "kubeconfig", "--all", "--dir", late); err != nil || !strings.Contains(out, "1 have access already and keep it: ann;") {
		t.Errorf("a class with a late student: %v: %s", err, out)
	}
	answers["GET /v1/kubeconfigs"] = json.RawMessage(`{"kubeconfigs": []}`)
	if made, err := os.ReadDir(late); err != nil || len(made) != 1 || made[0].Name() != "ben.kubeconfig" {
		t.Errorf("%v %v", made, err)
	}
	if _, err := at("vcluster", "kubeconfig", "x*", "--dir", class); err == nil || !strings.Contains(err.Error(), "no virtual cluster x*") {
		t.Errorf("a pattern that names none: %v", err)
	}
	out, err := at("vcluster", "kubeconfig", "ann", "ben", "--link", "-o", "json")
	var links []vclusterLink
	if err != nil || json.Unmarshal([]byte(out), &links) != nil || len(links) != 2 || !strings.HasPrefix(links[0].Link, "https://192.0.2.7:7442/k/") || links[0].Link == links[1].Link || links[0].Pin != "cGlu" {
		t.Errorf("%v: %s", err, out)
	}
	if out, err = at("vcluster", "kubeconfig", "b*", "--link"); err != nil || !strings.Contains(out, "curl -fsk --pinnedpubkey sha256//cGlu -d '' -o ben.kubeconfig https://192.0.2.7:7442/k/") {
		t.Errorf("%v: %s", err, out)
	}
}

// A course's kubeconfigs made again are those of its late students alone.
func TestWhoHasAccessKeepsIt(t *testing.T) {
	given := []api.Kubeconfig{{VCluster: "db-ann", User: "db-ann", State: "active"}, {VCluster: "db-ben", User: "db-ben", State: "unused"},
		{VCluster: "db-eve", User: "db-eve", State: "revoked"}, {VCluster: "db-zoe", User: "teacher", State: "active"}}
	for user, want := range map[string][2]string{"": {"db-ann db-ben", "db-eve db-zoe"}, "teacher": {"db-zoe", "db-ann db-ben db-eve"}} {
		have, rest := served([]string{"db-ann", "db-ben", "db-eve", "db-zoe"}, user, given)
		if got := [2]string{strings.Join(have, " "), strings.Join(rest, " ")}; got != want {
			t.Errorf("user %q: %q, want %q", user, got, want)
		}
	}
}
