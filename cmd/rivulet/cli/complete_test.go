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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rivulet/appliance/state/paths"
)

// completed is what a shell is offered for the last word, and how: 4 is no files, 0 files.
func completed(t *testing.T, dir string, words ...string) (out []string, directive string) {
	t.Helper()
	root, said := newRoot("engine"), &bytes.Buffer{}
	root.SetOut(said)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs(append([]string{"__complete", "--state", dir, "--runtime", dir}, words...))
	if err := root.Execute(); err != nil {
		t.Fatalf("%v: %v", words, err)
	}
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	return lines[:len(lines)-1], strings.TrimPrefix(lines[len(lines)-1], ":")
}

// Every word and every flag is completed by what there is, or by files where it is one. A verb that is
// new is found here, and so is a flag.
func TestEveryWordIsCompleted(t *testing.T) {
	dir := t.TempDir()
	raw, err := os.ReadFile("testdata/answers.json")
	if err != nil {
		t.Fatal(err)
	}
	var answers map[string]json.RawMessage
	if err := json.Unmarshal(raw, &answers); err != nil {
		t.Fatal(err)
	}
	answers["GET /v1/burst"] = json.RawMessage(`[{"name": "campus"}]`)
	answers["GET /v1/console/sessions"] = json.RawMessage(`{"sessions": [{"id": "0a1b"}]}`)
	answers["GET /v1/invites"] = json.RawMessage(`{"now": "2026-01-02T03:05:05Z", "invites": [{"id": "1", "made": "2026-01-02T03:04:05Z", "expires": "2026-01-02T03:14:05Z"}, {"id": "7", "join": true, "made": "2026-01-02T03:04:05Z", "expires": "2026-01-02T03:14:05Z"}]}`)
	supervise(t, filepath.Join(dir, "rivulet.sock"), answers)
	for line, want := range map[string]string{
		"approve ": "b d", "unpeer ": "b d", "drain ": "b d", "doctor peer ": "b d", "peer b --consume ": "on off", "offload lab --when ": "burst remote any services", "offload lab --to ": "b d burst-campus",
		"open lab --to ": "b d group all", "tenants remove ": "b c", "vcluster delete ": "ann ben", "vcluster connect ": "ann ben", "burst status ": "campus", "invite revoke ": "1", "kubeconfig revoke ": "anna", "vcluster kubeconfig ann ": "ann ben", "kubeconfig revoke anna --vcluster ": "ann ben",
		"kubeconfig --role ": "view edit admin", "console login --role ": "view operate admin", "offload lab --prefer ": "cheapest nearest spread none", "broker --only ": "", "token revoke ": "7", "console end ": "0a1b", "vcluster sleep ": "ann ben", "burst add x --network ": "none auto stream udp", "move volume lab/data ": "home b e", "status -o ": "json yaml wide", "doctor --only card": "card-life", "status ": "",
		"deny b ": "", "rotate-key ": "", "burst add x --namespace ": "",
	} {
		words := strings.Split(line, " ")
		got, directive := completed(t, dir, words...)
		if strings.Join(got, " ") != want && !strings.HasPrefix(line, "doctor --only") || !strings.Contains(strings.Join(got, " "), want) || directive != "4" {
			t.Errorf("%q: %q, %s, want %q and no files", line, got, directive, want)
		}
	}
	for _, line := range []string{"backup ", "image push ", "vcluster snapshot ann ", "support -o ", "restore ", "run --config "} {
		if got, directive := completed(t, dir, strings.Split(line, " ")...); len(got) > 0 || directive != "0" {
			t.Errorf("%q: %q, %s, want files", line, got, directive)
		}
	}
	each(newRoot("engine"), func(cmd *cobra.Command) {
		if cmd.DisableFlagParsing || strings.HasPrefix(path(cmd), "completion") || path(cmd) == "help" {
			return
		}
		file := strings.Contains(cmd.Use, "FILE") || strings.Contains(cmd.Use, "DEVICE")
		if cmd.ValidArgsFunction == nil && !file {
			t.Errorf("what follows rivulet %s is not completed", path(cmd))
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if _, ok := cmd.GetFlagCompletionFunc(f.Name); !ok && f.Value.Type() != "bool" && !strings.Contains("config kubeconfig passphrase-file boot root output dir", f.Name) {
				t.Errorf("rivulet %s --%s is not completed", path(cmd), f.Name)
			}
		})
		// What parts of the engine put among the flags of their process is none of a verb's.
		cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "state" && f.Name != "runtime" {
				t.Errorf("rivulet %s has --%s, which is not its own", path(cmd), f.Name)
			}
		})
	})
}

// Where nothing answers, completion gives nothing, and soon.
func TestCompletionWithoutADevice(t *testing.T) {
	dir := t.TempDir()
	for _, words := range [][]string{{"why", ""}, {"offload", ""}, {"drain", ""}, {"offload", "lab", "--to", ""}, {"pods", "--namespace", ""}} {
		if got, directive := completed(t, dir, words...); len(got) > 0 || directive != "4" {
			t.Errorf("%v: %q, %s, want no files and no names", words, got, directive)
		}
	}
}

// Objects of the API are completed by name: with their namespace where a flag names none.
func TestObjectsAreCompleted(t *testing.T) {
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, kind, _ := strings.Cut(r.URL.Path, "/api/v1/")
		fmt.Fprintf(w, `{"items": [{"metadata": %s}]}`, map[string]string{
			"namespaces": `{"name": "lab"}`, "pods": `{"namespace": "lab", "name": "web"}`, "namespaces/lab/pods": `{"namespace": "lab", "name": "one"}`,
			"persistentvolumeclaims": `{"namespace": "lab", "name": "data"}`,
		}[kind])
	}))
	defer apiServer.Close()
	dir := t.TempDir()
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n", apiServer.URL)
	if err := os.WriteFile(paths.Kubeconfig(dir), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{"offload ": "lab", "why ": "lab/web", "why -n lab ": "one", "move volume ": "lab/data", "pods -n ": "lab"} {
		if got, directive := completed(t, dir, strings.Split(line, " ")...); strings.Join(got, " ") != want || directive != "4" {
			t.Errorf("%q: %q, %s, want %q", line, got, directive, want)
		}
	}
}
