package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"rivulet/appliance/state/paths"
	"rivulet/offload/policy"
)

// ends are the verbs that end something: pods, data, access, a peering; and those that run what somebody else has written. What follows them is what
// the test has them do; "-" needs more of a device than a test has.
var ends = map[string]string{
	"nodes remove": "w", "nodes switch": "", "leave": "-", "join": "-", "unpeer": "b", "deny": "b", "peer": "b --consume=off", "drain": "b", "unoffload": "lab", "offload": "lab --when=services", "tenants remove": "c", "volumes delete": "b/lab/db", "burst remove": "campus", "burst add": "-", "burst check": "-",
	"vcluster delete": "ann", "course delete": "db", "kubeconfig revoke": "anna", "metrics revoke": "prometheus", "image rm": "-", "reset": "-", "uninstall": "-", "flash": "-", "restore": "-",
}

// endNothing are the others: they look, make or change, and what they take back is there again
// with another verb, nothing that ran having ended.
var endNothing = strings.Fields(`run status doctor doctor/peer config/check config/show config/reload config/example config/explain install peers approve
	nodes nodes/upgrade nodes/standby token/create token/list token/revoke invite invite/list invite/revoke burst/plugin burst/list burst/status vcluster/create vcluster/list vcluster/describe vcluster/connect vcluster/kubeconfig
	course/list course/status course/report course/sleep course/kubeconfigs vcluster/sleep vcluster/pause vcluster/resume vcluster/set vcluster/snapshot vcluster/restore vcluster/logs pods why trace cordon uncordon move/volume volumes volumes/adopt tenants services
	open close image/push image/list backup upgrade support metrics metrics/grant metrics/list rotate-key broker firstboot end-pods console console/login console/list console/end kubectl ctr crictl version kubeconfig kubeconfig/list licenses docs help`)

// fakeDevice is a supervisor beside an API server whose pods on peer b are those given, as JSON.
// It returns the folder of both. Nothing may be changed at the API server.
func fakeDevice(t *testing.T, pods, claims *string, silent *string) string {
	t.Helper()
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		list := func(kind, items string) {
			fmt.Fprintf(w, `{"kind": "%sList", "apiVersion": "v1", "items": [%s]}`, kind, items)
		}
		if r.Method != http.MethodGet {
			t.Errorf("%s %s, though nobody said yes", r.Method, r.URL.Path)
		}
		switch r.URL.Path {
		case *silent:
			http.Error(w, "the datastore is busy", http.StatusInternalServerError)
		case "/api/v1/nodes":
			if r.URL.Query().Get("labelSelector") == "!"+policy.VirtualNodeLabel { // those of this cluster
				list("Node", `{"metadata": {"name": "a"}}, {"metadata": {"name": "w", "labels": {"`+policy.WorkerLabel+`": "true"}}}`)
				return
			}
			list("Node", `{"metadata": {"name": "b", "labels": {"rivulet.dev/virtual-node": "`+strings.Repeat("b", 32)+`"}}}`)
		case "/api/v1/pods":
			if got, want := r.URL.Query().Get("fieldSelector"), "spec.nodeName=b"; got != want {
				t.Errorf("pods by %s, want %s", got, want)
			}
			list("Pod", *pods)
		case "/api/v1/persistentvolumes":
			list("PersistentVolume", "")
		case "/apis/rivulet.dev/v1alpha1/courses":
			fmt.Fprint(w, `{"kind": "CourseList", "apiVersion": "rivulet.dev/v1alpha1", "items": [{"kind": "Course", "apiVersion": "rivulet.dev/v1alpha1", "metadata": {"namespace": "t", "name": "db"}}]}`)
		case "/apis/rivulet.dev/v1alpha1/namespaces/t/virtualclusters":
			fmt.Fprint(w, `{"kind": "VirtualClusterList", "apiVersion": "rivulet.dev/v1alpha1", "items": []}`)
		case "/api/v1/namespaces":
			if got, want := r.URL.Query().Get("labelSelector"), "rivulet.dev/origin="+strings.Repeat("b", 32); got != want {
				t.Errorf("namespaces by %s, want %s", got, want)
			}
			list("Namespace", `{"metadata": {"name": "lab-b-bbbbbbbb"}}`)
		case "/api/v1/namespaces/lab-b-bbbbbbbb/persistentvolumeclaims":
			list("PersistentVolumeClaim", *claims)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(apiServer.Close)
	dir := t.TempDir()
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: default\nclusters: [{name: default, cluster: {server: %q}}]\ncontexts: [{name: default, context: {cluster: default, user: default}}]\nusers: [{name: default, user: {token: x}}]\n", apiServer.URL)
	if err := os.WriteFile(paths.Kubeconfig(dir), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	b := `"id": "` + strings.Repeat("b", 32) + `", "name": "b"`
	supervise(t, filepath.Join(dir, "rivulet.sock"), map[string]json.RawMessage{
		"GET /v1/vclusters/ann": json.RawMessage(`{"name": "ann"}`),
		"GET /v1/vclusters/bob": json.RawMessage(`"there is no virtual cluster \"bob\"; see: rivulet vcluster list"`),
		"GET /v1/status": json.RawMessage(`{"nodeName": "a", "peers": [{` + b + `, "state": "Connected"}, {"id": "` + strings.Repeat("d", 32) + `", "name": "d", "state": "Waiting"}],
			"virtualNodes": [{"name": "b", "target": "b", ` + b[:strings.Index(b, ",")] + `}],
			"consumers": [{` + b + `, "peer": true, "pods": 2}, {"id": "` + strings.Repeat("c", 32) + `", "name": "c", "pods": 1}]}`),
		"GET /v1/kubeconfigs":    json.RawMessage(`{"kubeconfigs": [{"user": "anna", "state": "active"}, {"user": "ben", "state": "unused"}, {"user": "carl", "state": "revoked"}, {"user": "dora", "vcluster": "ann", "state": "active"}]}`),
		"GET /v1/metrics/access": json.RawMessage(`{"accesses": [{"name": "prometheus"}]}`),
		"GET /v1/volumes":        json.RawMessage(`{"kept": [{"ref": "b/lab/db"}, {"ref": "b/lab/web"}], "silent": ["c"]}`),
		"GET /v1/burst":          json.RawMessage(`[{"name": "campus"}]`),
		"POST /v1/peers/unpeer":  json.RawMessage(`{` + b + `}`),
		"POST /v1/peers/deny":    json.RawMessage(`{"name": "d"}`),
	})
	return dir
}

const (
	owned = `{"metadata": {"namespace": "lab", "name": "web", "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": true}]}}`
	bare  = `{"metadata": {"namespace": "lab", "name": "bare"}}, {"metadata": {"namespace": "shop", "name": "one"}}, {"metadata": {"namespace": "lab", "name": "alone"}}`
)

// Every verb that ends something says what, and does nothing without a yes.
func TestVerbsThatEndAsk(t *testing.T) {
	pods, claims, silent := owned, "", ""
	dir := fakeDevice(t, &pods, &claims, &silent)
	each(newRoot("engine"), func(cmd *cobra.Command) {
		verb := path(cmd)
		args, asks := ends[verb]
		if cmd.HasSubCommands() && !cmd.Runnable() || strings.HasPrefix(verb, "completion") {
			return
		}
		switch flag := cmd.Flags().Lookup("yes"); {
		case asks && flag == nil:
			t.Errorf("rivulet %s ends something and has no --yes; give it yesFlag and confirm", verb)
		case !asks && flag != nil:
			t.Errorf("rivulet %s asks; put it into ends", verb)
		case !asks && !slices.Contains(endNothing, strings.ReplaceAll(verb, " ", "/")) && !cmd.HasSubCommands():
			t.Errorf("does rivulet %s end something? put it into ends or endNothing", verb)
		}
		if !asks || args == "-" {
			return
		}
		_, out, err := execute(t, dir, append(strings.Fields(verb), strings.Fields(args)...))
		if err == nil || exitCode(err) != exitUsage || !strings.HasSuffix(err.Error(), " Nothing was done; there is no terminal to ask at, add --yes: rivulet "+strings.TrimSpace(verb+" "+args)+" --runtime="+dir+" --state="+dir+" --yes") {
			t.Errorf("rivulet %s %s: %v, %s", verb, args, err, out)
			return
		}
		if what := "that their owners make again elsewhere: 1 (lab/web)"; strings.Contains("unpeer deny peer drain unoffload", verb) && !strings.Contains(err.Error(), what) {
			t.Errorf("rivulet %s %s: %v, want %s", verb, args, err, what)
		}
	})
	for _, line := range []string{"unpeer b --yes", "unpeer nobody", "deny d"} { // the last two end nothing
		if _, out, err := execute(t, dir, strings.Fields(line)); err != nil {
			t.Errorf("%s: %v, %s", line, err, out)
		}
	}
}

// A name that is wrong is said before anything is asked.
func TestNamesAreCheckedBeforeAsking(t *testing.T) {
	pods, none := owned, ""
	dir := fakeDevice(t, &pods, &none, &none)
	for line, want := range map[string]string{
		"nodes remove cc":         `no node of this cluster is called "cc"; see: rivulet nodes`,
		"nodes remove a":          "a is the server of this cluster",
		"nodes remove a --yes":    "a is the server of this cluster",
		"vcluster delete ann bob": `there is no virtual cluster "bob"`,

		"kubeconfig revoke ana":                 `there is no access of "ana", but: anna, ben; see: rivulet kubeconfig list`,
		"kubeconfig revoke dora":                `there is no access of "dora", but: anna, ben;`,
		"kubeconfig revoke anna --vcluster ann": `there is no access of "anna", but: dora;`,
		"kubeconfig revoke anna --vcluster bob": `there is no access of "anna", and no other;`,
		"metrics revoke prom":                   `there is no access to the metrics of "prom", but: prometheus; see: rivulet metrics list`,
		"volumes delete b/lab/dbb":              `there is no data without a claim "b/lab/dbb", but: b/lab/db, b/lab/web; see: rivulet volumes`,
		"burst remove camp":                     `there is no burst target "camp", but: campus; see: rivulet burst list`,
	} {
		if _, out, err := execute(t, dir, strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error()+out, "?") {
			t.Errorf("%s: %v, %s; want %q and no question", line, err, out, want)
		}
	}
	// What a silent peer has is not known.
	if _, out, err := execute(t, dir, []string{"volumes", "delete", "c/lab/db"}); err == nil || !strings.Contains(err.Error(), "there is no terminal to ask at") {
		t.Errorf("%v, %s", err, out)
	}
}

// reset and uninstall name what a device that runs has.
func TestWhatThereIs(t *testing.T) {
	none, pods := "", owned
	c := &common{}
	c.dirs.Run = fakeDevice(t, &pods, &none, &none)
	if got, want := c.whatThereIs(t.Context()), ". Peers: b. Pods: 0 at home, 0 away, 0 of tenants here"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if c.dirs.Run = t.TempDir(); c.whatThereIs(t.Context()) != "" {
		t.Error("there is something where nothing runs")
	}
}

// What nobody makes again is not ended without --force, by drain and unpeer alike.
func TestPodsThatNobodyMakesAgain(t *testing.T) {
	pods, claims, silent := owned+","+bare, "", ""
	dir := fakeDevice(t, &pods, &claims, &silent)
	for _, verb := range []string{"drain", "unpeer"} {
		_, out, err := execute(t, dir, []string{verb, "b", "--yes"})
		const want = "nobody makes these pods again elsewhere, so nothing was done: lab/alone, lab/bare, shop/one; " +
			"delete them: rivulet kubectl delete pod -n lab alone bare; and: rivulet kubectl delete pod -n shop one; or: rivulet "
		if exitCode(err) != exitFailed || err.Error() != want+verb+" b --force" {
			t.Errorf("%s: %v, %s", verb, err, out)
		}
		_, out, err = execute(t, dir, []string{verb, "b", "--force"})
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), "that nobody makes again: 3 (lab/alone, lab/bare, shop/one)") {
			t.Errorf("%s --force: %v, %s", verb, err, out)
		}
	}
}

// A peer that has data here, or of which nobody can tell, is not sent away without a word; with --force it is,
// and so is one that has none.
func TestUnpeerNamesTheDataOfTenants(t *testing.T) {
	pods, claims, silent := "", `{"metadata": {"name": "data-0a1b2c"}}`, ""
	dir := fakeDevice(t, &pods, &claims, &silent)
	for _, name := range []string{"b", "bbbbbbbb"} {
		_, out, err := execute(t, dir, []string{"unpeer", name, "--yes"})
		if err == nil || !strings.Contains(err.Error(), "b has data here, in lab-b-bbbbbbbb/data-0a1b2c, and would lose them") || !strings.Contains(err.Error(), "; or: rivulet unpeer b --force") {
			t.Errorf("unpeer %s: %v, %s", name, err, out)
		}
	}
	if _, out, err := execute(t, dir, []string{"unpeer", "b", "--force"}); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "Claims whose data are lost: lab-b-bbbbbbbb/data-0a1b2c") {
		t.Errorf("with --force: %v, %s", err, out)
	}
	if _, out, err := execute(t, dir, []string{"unpeer", "b", "--force", "--yes"}); err != nil || !strings.Contains(out, "no peer any more") {
		t.Errorf("with --force --yes: %v, %s", err, out)
	}
	claims = ""
	if _, out, err := execute(t, dir, []string{"unpeer", "b", "--yes"}); err != nil || !strings.Contains(out, "no peer any more") {
		t.Errorf("without data: %v, %s", err, out)
	}
	for _, path := range []string{"/api/v1/pods", "/api/v1/persistentvolumes", "/api/v1/namespaces", "/api/v1/namespaces/lab-b-bbbbbbbb/persistentvolumeclaims"} {
		silent = path
		if _, out, err := execute(t, dir, []string{"unpeer", "b", "--yes"}); err == nil || !strings.Contains(err.Error(), "cannot be told") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("while %s is not answered: %v, %s", path, err, out)
		}
	}
}
