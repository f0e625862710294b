package resourcemetrics

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

func named(namespace, name string, l map[string]string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: l}}
}

func ptr[T any](v T) *T { return &v }

func used(nano, bytes uint64) (*stats.CPUStats, *stats.MemoryStats) {
	at := metav1.NewTime(time.Unix(1700000000, 0))
	return &stats.CPUStats{Time: at, UsageNanoCores: ptr(nano)}, &stats.MemoryStats{Time: at, WorkingSetBytes: ptr(bytes)}
}

func podStats(namespace, name, uid string, containers ...stats.ContainerStats) stats.PodStats {
	return stats.PodStats{PodRef: stats.PodReference{Namespace: namespace, Name: name, UID: uid}, Containers: containers}
}

func containerStats(name string, nano, bytes uint64) stats.ContainerStats {
	c := stats.ContainerStats{Name: name}
	c.CPU, c.Memory = used(nano, bytes)
	return c
}

// cluster is two nodes that answer, one that does not, and pods.
func cluster() (*source, *atomic.Int32) {
	all := map[string][]metav1.PartialObjectMetadata{
		kindNodes: {named("", "a", map[string]string{"zone": "1"}), named("", "b", nil), named("", "gone", nil)},
		kindPods: {
			named("shop", "web-1", map[string]string{"app": "web"}), named("shop", "db-0", map[string]string{"app": "db"}),
			named("other", "web-2", map[string]string{"app": "web"}), named("shop", "young", nil),
		},
	}
	choose := func(_ context.Context, kind, namespace string, o metav1.ListOptions) (out []metav1.PartialObjectMetadata, err error) {
		l, err := labels.Parse(o.LabelSelector)
		if err != nil {
			return nil, err
		}
		f, err := fields.ParseSelector(o.FieldSelector)
		for _, m := range all[kind] {
			if (namespace == "" || namespace == m.Namespace) && l.Matches(labels.Set(m.Labels)) && f.Matches(fields.Set{"metadata.name": m.Name}) {
				out = append(out, m)
			}
		}
		return out, err
	}
	var asked atomic.Int32
	get := func(_ context.Context, node string) (*stats.Summary, error) {
		asked.Add(1)
		s := &stats.Summary{}
		switch node {
		case "a":
			s.Node.CPU, s.Node.Memory = used(250_000_000, 2<<30)
			s.Pods = []stats.PodStats{
				podStats("shop", "web-1", "uid-web-1", containerStats("web", 1_500_000, 4<<20), containerStats("side", 500_000, 1<<20)),
				podStats("shop", "db-0", "uid-of-an-earlier-one", containerStats("db", 1, 1)),
				podStats("shop", "young", "uid-young", containerStats("ready", 1, 1), stats.ContainerStats{Name: "not-measured"}),
			}
		case "b":
			s.Node.CPU, s.Node.Memory = used(0, 1<<30)
			s.Pods = []stats.PodStats{podStats("other", "web-2", "uid-web-2", containerStats("web", 0, 1<<20))}
		default:
			return nil, errors.New("no route")
		}
		return s, nil
	}
	return newSource(choose, get, slog.New(slog.DiscardHandler)), &asked
}

func call(t *testing.T, h http.Handler, method, path, accept string) (int, []byte) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

func TestListsAndSelectors(t *testing.T) {
	s, _ := cluster()
	h := newHandler(s)
	for path, want := range map[string][]string{
		base + "/pods":                                        {"other/web-2", "shop/web-1"},
		base + "/namespaces/shop/pods":                        {"shop/web-1"},
		base + "/pods?labelSelector=app%3Dweb":                {"other/web-2", "shop/web-1"},
		base + "/namespaces/shop/pods?labelSelector=app%3Ddb": {},
		base + "/pods?fieldSelector=metadata.name%3Dweb-2":    {"other/web-2"},
		base + "/namespaces/empty/pods":                       {},
		base + "/nodes":                                       {"/a", "/b"},
		base + "/nodes?labelSelector=zone":                    {"/a"},
	} {
		code, body := call(t, h, "GET", path, "application/vnd.kubernetes.protobuf, */*")
		var l struct {
			Kind  string
			Items []metav1.PartialObjectMetadata
		}
		if err := json.Unmarshal(body, &l); err != nil || code != 200 || !strings.HasSuffix(l.Kind, "MetricsList") || l.Items == nil {
			t.Errorf("%s: %d %s", path, code, body)
		}
		got := []string{}
		for _, i := range l.Items {
			got = append(got, i.Namespace+"/"+i.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

func TestWhatIsMeasured(t *testing.T) {
	s, _ := cluster()
	h := newHandler(s)
	_, body := call(t, h, "GET", base+"/namespaces/shop/pods/web-1", "")
	var p v1beta1.PodMetrics
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	if p.Kind != "PodMetrics" || p.Labels["app"] != "web" || p.Timestamp.Unix() != 1700000000 || p.Window.Duration != window || len(p.Containers) != 2 {
		t.Errorf("%s", body)
	}
	if u := p.Containers[0].Usage; u.Cpu().String() != "1500u" || u.Memory().String() != "4Mi" {
		t.Errorf("%s", body)
	}
	_, body = call(t, h, "GET", base+"/nodes/a", "")
	var n v1beta1.NodeMetrics
	if err := json.Unmarshal(body, &n); err != nil || n.Usage.Cpu().String() != "250m" || n.Usage.Memory().String() != "2Gi" || n.Kind != "NodeMetrics" {
		t.Errorf("%s %v", body, err)
	}
}

func TestTable(t *testing.T) {
	s, _ := cluster()
	_, body := call(t, newHandler(s), "GET", base+"/namespaces/shop/pods", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || table.Kind != "Table" || len(table.Rows) != 1 || len(table.ColumnDefinitions) != 4 {
		t.Fatalf("%s %v", body, err)
	}
	if got := table.Rows[0].Cells; got[0] != "web-1" || got[1] != "3m" || got[2] != "5120Ki" || got[3] != "15s" {
		t.Errorf("%v", got) // 2 mCPU and a part of one, each rounded up
	}
	if !strings.Contains(string(table.Rows[0].Object.Raw), `"namespace":"shop"`) {
		t.Errorf("rows do not say whose they are: %s", table.Rows[0].Object.Raw)
	}
}

func TestAnswersThatAreErrors(t *testing.T) {
	s, _ := cluster()
	h := newHandler(s)
	for _, c := range []struct {
		method, path, accept string
		code                 int
		reason               metav1.StatusReason
	}{
		{"GET", base + "/nodes/gone", "", 404, metav1.StatusReasonNotFound},
		{"GET", base + "/nodes/none", "", 404, metav1.StatusReasonNotFound},
		{"GET", base + "/namespaces/shop/pods/db-0", "", 404, metav1.StatusReasonNotFound},
		{"GET", base + "/namespaces/shop/pods/young", "", 404, metav1.StatusReasonNotFound},
		{"GET", base + "/pods?watch=true", "", 405, metav1.StatusReasonMethodNotAllowed},
		{"GET", base + "/nodes?watch=1", "", 405, metav1.StatusReasonMethodNotAllowed},
		{"POST", base + "/namespaces/shop/pods", "", 405, metav1.StatusReasonMethodNotAllowed},
		{"DELETE", base + "/nodes/a", "", 405, metav1.StatusReasonMethodNotAllowed},
		{"GET", base + "/pods", "application/yaml", 406, metav1.StatusReasonNotAcceptable},
		{"GET", base + "/secrets", "", 404, metav1.StatusReasonNotFound},
		{"GET", "/api/v1/pods", "", 404, metav1.StatusReasonNotFound},
	} {
		code, body := call(t, h, c.method, c.path, c.accept)
		var status metav1.Status
		if err := json.Unmarshal(body, &status); err != nil || code != c.code || status.Kind != "Status" || status.Reason != c.reason {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, body)
		}
	}
}

func TestDiscovery(t *testing.T) {
	s, _ := cluster()
	h := newHandler(s)
	for path, part := range map[string]string{
		"/apis": `"kind":"APIGroupList"`, "/apis/metrics.k8s.io": `"preferredVersion"`, base: `"kind":"PodMetrics"`,
		"/openapi/v2": `"swagger"`, "/openapi/v3": `"paths"`, "/livez": "ok",
	} {
		if code, body := call(t, h, "GET", path, ""); code != 200 || !strings.Contains(string(body), part) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}

func TestNegotiate(t *testing.T) {
	for accept, want := range map[string]struct {
		form form
		ok   bool
	}{
		"":                                    {asJSON, true},
		"*/*":                                 {asJSON, true},
		"application/json":                    {asJSON, true},
		"application/vnd.kubernetes.protobuf": {0, false},
		"application/vnd.kubernetes.protobuf, */*":                            {asJSON, true},
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json":       {asTable, true},
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io":    {0, false},
		"application/json;as=Table;v=v9;g=meta.k8s.io,application/json;q=0.9": {asJSON, true},
		";;;,application/json": {asJSON, true},
		"text/html":            {0, false},
	} {
		if got, ok := negotiate([]string{accept}); got != want.form || ok != want.ok {
			t.Errorf("%q: %v %v", accept, got, ok)
		}
	}
}

// Kubelets are asked only when somebody asks, and not twice for the same.
func TestKubeletsAreAskedSeldom(t *testing.T) {
	s, asked := cluster()
	now := time.Unix(0, 0)
	s.now = func() time.Time { return now }
	h := newHandler(s)
	done := make(chan struct{})
	for range 8 {
		go func() { call(t, h, "GET", base+"/pods", ""); done <- struct{}{} }()
	}
	for range 8 {
		<-done
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("three nodes were asked %d times", n)
	}
	now = now.Add(fresh)
	call(t, h, "GET", base+"/nodes/a", "")
	if n := asked.Load(); n != 4 {
		t.Errorf("asked %d times, after ten seconds one node is due", n)
	}
	if call(t, h, "GET", "/apis", ""); asked.Load() != 4 {
		t.Error("the API server's looking whether we live costs the kubelets something")
	}
}

// A virtual node on which nothing runs uses nothing; a real one that says so has
// not measured yet.
func TestNothingIsAnAnswerOfVirtualNodesOnly(t *testing.T) {
	s := &stats.Summary{}
	s.Node.CPU, s.Node.Memory = used(0, 0)
	if node, _ := read(s); node == nil || node.cpu != 0 {
		t.Errorf("%+v", node)
	}
	s.Node.StartTime = metav1.Now()
	if node, _ := read(s); node != nil {
		t.Errorf("%+v", node)
	}
}
