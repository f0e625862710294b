package offer

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"rivulet/test/harness/fakewatch"
)

// A consumer hears at once, hears of a change, does not hear of a change that
// makes no difference, and its going ends the handler.
func TestStream(t *testing.T) {
	var current atomic.Pointer[Offer]
	current.Store(&Offer{Reason: "first"})
	changed := make(chan struct{})
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Stream(w, r, func() Offer { return *current.Load() }, changed)
		close(ended)
	}))
	defer server.Close()

	ctx, leave := context.WithCancel(t.Context())
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	expect := func(reason string) time.Time {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		var got Offer
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil || got.Reason != reason {
			t.Fatalf("line %s, error %v; want reason %q", lines.Bytes(), err, reason)
		}
		return time.Now()
	}
	expect("first")
	changed <- struct{}{} // no difference: no line
	current.Store(&Offer{Reason: "second"})
	changed <- struct{}{}
	before := expect("second")
	// Late where the machine is busy, but never so late that a consumer takes it for dead (12 s).
	if gap := expect("second").Sub(before); gap > 2*Heartbeat || gap < Heartbeat-time.Second {
		t.Errorf("heartbeat after %v, want %v", gap, Heartbeat)
	}
	leave()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the handler outlives its consumer")
	}
}

func TestBeat(t *testing.T) {
	for query, want := range map[string]time.Duration{"": Heartbeat, "?beat=60": Calm, "?beat=20": 20 * time.Second, "?beat=1": Heartbeat, "?beat=86400": Calm, "?beat=-1": Heartbeat, "?beat=x": Heartbeat} {
		if got := beat(httptest.NewRequest(http.MethodGet, "/v1/offer"+query, nil)); got != want {
			t.Errorf("%q: every %v, want %v", query, got, want)
		}
	}
}

// The watcher tells of a change once it has settled, and counts tenants.
func TestWatcher(t *testing.T) {
	client := fake.NewClientset(node("n", "4", "4Gi"))
	w := NewWatcher(client)
	if o := w.Offer(consumer, nil, Shares{}); o.Ready || o.Reason == "" {
		t.Errorf("before Run: %+v, want not ready with a reason", o)
	}
	changed, stop := w.Changed()
	defer stop()
	go w.Run(t.Context())
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.After(10 * time.Second); !ok(); {
			select {
			case <-changed:
			case <-deadline:
				t.Fatal("waited in vain for", what)
			}
		}
	}
	cpu := func() int64 {
		o := w.Offer(consumer, nil, Shares{})
		return o.Allocatable.Cpu().Value()
	}
	await("the node", func() bool { return cpu() == 4 })
	fakewatch.Open(t, client, "pods")
	tenant := pod("n", "1", "1Gi", "bbbb")
	tenant.ObjectMeta = metav1.ObjectMeta{Name: "p", Namespace: "x", Labels: tenant.Labels}
	if _, err := client.CoreV1().Pods("x").Create(t.Context(), tenant, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the pod", func() bool { return cpu() == 2 })
	if n := w.Tenants()["bbbb"]; n != 1 {
		t.Errorf("%d tenants, want 1", n)
	}
	tenant.Status.Phase = corev1.PodFailed
	if _, err := client.CoreV1().Pods("x").UpdateStatus(t.Context(), tenant, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the room back", func() bool { return cpu() == 4 && w.Tenants()["bbbb"] == 0 })
}
