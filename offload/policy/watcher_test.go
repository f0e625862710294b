package policy_test

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

func TestParse(t *testing.T) {
	const l, to = policy.NamespaceLabel, policy.NamespaceToLabel
	cases := []struct {
		name   string
		labels map[string]string
		want   policy.Namespace
		bad    bool
	}{
		{"not labelled", nil, policy.Namespace{When: policy.Off}, false},
		{"burst", map[string]string{l: "burst"}, policy.Namespace{When: policy.Burst}, false},
		{"remote to b", map[string]string{l: "remote", to: "b"}, policy.Namespace{When: policy.Remote, To: "b"}, false},
		{"any", map[string]string{l: "any"}, policy.Namespace{When: policy.Any}, false},
		{"services", map[string]string{l: "services", to: "b"}, policy.Namespace{When: policy.Services, To: "b"}, false},
		{"off forgets where to", map[string]string{l: "off", to: "b"}, policy.Namespace{When: policy.Off}, false},
		{"only where to", map[string]string{to: "b"}, policy.Namespace{When: policy.Off}, false},
		{"another word", map[string]string{l: "true"}, policy.Namespace{When: policy.Off}, true},
		{"no word", map[string]string{l: ""}, policy.Namespace{When: policy.Off}, true},
	}
	for _, c := range cases {
		got, err := policy.Parse(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}})
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "burst, remote, any, services, off") {
			t.Errorf("%s: %q does not say what to write", c.name, err)
		}
		going := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
		if got, err := policy.Parse(going); got.When != policy.Off || err != nil {
			t.Errorf("%s, going away: %+v, %v; want off", c.name, got, err)
		}
	}
}

func TestAllows(t *testing.T) {
	cases := []struct {
		ns             policy.Namespace
		pods, services bool
	}{
		{policy.Namespace{When: policy.Burst}, true, true},
		{policy.Namespace{When: policy.Burst, To: "b"}, true, true},
		{policy.Namespace{When: policy.Burst, To: "c"}, false, false},
		{policy.Namespace{When: policy.Services}, false, true},
		{policy.Namespace{When: policy.Services, To: "b"}, false, true},
		{policy.Namespace{When: policy.Services, To: "c"}, false, false},
		{policy.Namespace{When: policy.Off}, false, false},
		{policy.Namespace{}, false, false},
	}
	for _, c := range cases {
		if c.ns.Allows("b") != c.pods || c.ns.Reflects("b") != c.services {
			t.Errorf("%+v, b: pods %v, Services %v", c.ns, c.ns.Allows("b"), c.ns.Reflects("b"))
		}
	}
}

// A user labels, changes, mistypes, corrects and deletes.
func testWatcher(t *testing.T, server *apiserver.Server) {
	client := server.Client
	namespace(t, client, "before", map[string]string{policy.NamespaceLabel: "any"})
	w := policy.New(client, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- w.Run(ctx) }()
	if !w.WaitSynced(ctx) {
		t.Fatal("not synced")
	}
	expect := func(want map[string]policy.Namespace) {
		t.Helper()
		await.True(t, time.Minute, "namespaces as labelled", func() bool { return maps.Equal(w.Namespaces(), want) })
	}
	label := func(name, patch string) {
		t.Helper()
		if _, err := client.CoreV1().Namespaces().Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":`+patch+`}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	before := policy.Namespace{When: policy.Any}
	expect(map[string]policy.Namespace{"before": before})

	changed, cancel := w.Changed()
	defer cancel()
	namespace(t, client, "lab", nil)
	label("lab", `{"rivulet.dev/offload":"burst","rivulet.dev/offload-to":"b"}`)
	<-changed
	expect(map[string]policy.Namespace{"before": before, "lab": {When: policy.Burst, To: "b"}})
	if ns, ok := w.Get("lab"); !ok || ns.To != "b" {
		t.Errorf("Get = %+v, %v", ns, ok)
	}
	label("lab", `{"rivulet.dev/offload":"bursty"}`)
	expect(map[string]policy.Namespace{"before": before})
	await.True(t, time.Minute, "a warning in the namespace", func() bool {
		events, err := client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{})
		return err == nil && len(events.Items) == 1 && events.Items[0].Type == corev1.EventTypeWarning &&
			events.Items[0].Reason == "InvalidOffload" && strings.Contains(events.Items[0].Message, `"bursty"`)
	})
	label("lab", `{"rivulet.dev/offload":"remote","rivulet.dev/offload-to":null}`)
	expect(map[string]policy.Namespace{"before": before, "lab": {When: policy.Remote}})
	label("before", `{"rivulet.dev/offload":null}`)
	expect(map[string]policy.Namespace{"lab": {When: policy.Remote}})
	if err := client.CoreV1().Namespaces().Delete(ctx, "lab", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(map[string]policy.Namespace{})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}
