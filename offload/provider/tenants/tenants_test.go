package tenants

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

func twin(name string, id peer.ID) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.OriginLabel: string(id)}}}
}

type world struct {
	client  *fake.Clientset
	peers   map[peer.ID]bool
	tenants *Tracker
}

func newWorld() *world {
	w := &world{peers: map[peer.ID]bool{"a": true, "c": true},
		client: fake.NewSimpleClientset(twin("lab-a", "a"), twin("shop-a", "a"), twin("lab-c", "c"), twin("lab-x", "x"),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}})}
	w.restart()
	return w
}

func (w *world) restart() {
	w.tenants = New(Config{Client: w.client, IsPeer: func(id peer.ID) bool { return w.peers[id] }, Log: slog.New(slog.DiscardHandler)})
}

func (w *world) round(t interface{ Fatal(...any) }, passed time.Duration) {
	if _, err := w.tenants.round(context.Background(), passed); err != nil {
		t.Fatal(err)
	}
}

// calls is a request of a consumer, and what Run does about it.
func (w *world) calls(t interface{ Fatal(...any) }, id peer.ID) {
	w.tenants.enter(id)
	w.tenants.leave(id)
	select {
	case <-w.tenants.poke:
		w.round(t, 0)
	default:
	}
}

func (w *world) left(t interface{ Fatal(...any) }) string {
	list, err := w.client.CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{LabelSelector: policy.OriginLabel})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, ns := range list.Items {
		names = append(names, ns.Name)
	}
	return fmt.Sprint(names)
}

func TestTwinsOfTheSilentGo(t *testing.T) {
	w := newWorld()
	w.tenants.enter("a") // a watch that lasts
	w.round(t, 0)
	for range 23 {
		w.round(t, time.Hour)
	}
	if got := w.left(t); got != "[lab-a lab-c lab-x shop-a]" {
		t.Fatalf("after 23 hours: %s", got)
	}
	if s := w.tenants.Silence("x"); s != (Silence{23 * time.Hour, time.Hour}) {
		t.Errorf("the stranger: %+v", s)
	}
	w.round(t, time.Hour)
	if got := w.left(t); got != "[lab-a lab-c shop-a]" {
		t.Fatalf("after a day: %s", got)
	}
	for range 24 * 29 {
		w.round(t, time.Hour)
	}
	if got := w.left(t); got != "[lab-a shop-a]" {
		t.Fatalf("after 30 days: %s", got)
	}
	if s := w.tenants.Silence("a"); s != (Silence{}) {
		t.Errorf("one that is heard is silent: %+v", s)
	}
	w.peers["a"] = false // forgotten: the watch ends with it
	w.tenants.leave("a")
	w.round(t, time.Hour)
	w.round(t, 23*time.Hour)
	if got := w.left(t); got != "[lab-a shop-a]" {
		t.Fatalf("23 hours after it was forgotten: %s", got)
	}
	w.round(t, time.Hour)
	if got := w.left(t); got != "[]" {
		t.Errorf("a day after it was forgotten: %s", got)
	}
}

// Whatever happens, in any order and with restarts, no twin goes whose consumer
// was heard less than its limit ago, counted in time that this process ran.
func TestNobodyIsThrownOutEarly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		silence := map[peer.ID]time.Duration{}
		ids := map[string]peer.ID{"lab-a": "a", "shop-a": "a", "lab-c": "c", "lab-x": "x"}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := rapid.SampledFrom([]peer.ID{"a", "c", "x"}).Draw(t, "who")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if w.peers[id] {
					w.calls(t, id)
					silence[id] = 0
				}
			case 1:
				w.restart()
				w.round(t, 0)
			case 2:
				w.peers[id] = !w.peers[id]
			case 3:
				d := time.Duration(rapid.IntRange(1, 500).Draw(t, "minutes")) * 10 * time.Minute
				for id := range map[peer.ID]bool{"a": true, "c": true, "x": true} {
					silence[id] += d
				}
				before := w.left(t)
				w.round(t, d)
				after := w.left(t)
				if before == after {
					continue
				}
				for name, id := range ids {
					if _, err := w.client.CoreV1().Namespaces().Get(context.Background(), name, metav1.GetOptions{}); err != nil && silence[id] < w.tenants.limit(id) {
						t.Fatalf("%s went after %s of silence", name, silence[id])
					}
				}
				for name := range ids {
					if _, err := w.client.CoreV1().Namespaces().Get(context.Background(), name, metav1.GetOptions{}); err != nil {
						delete(ids, name)
					}
				}
			}
		}
	})
}

// unwritable fails every write until the returned function is called.
func (w *world) unwritable() (mend func()) {
	var mended atomic.Bool
	w.client.PrependReactor("patch", "namespaces", func(ktesting.Action) (bool, runtime.Object, error) {
		return !mended.Load(), nil, errors.New("no space left on device")
	})
	return func() { mended.Store(true) }
}

// TestAFailedWriteCountsNoTimeAgain runs a provider whose disk is full for a night while two consumers are off.
func TestAFailedWriteCountsNoTimeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		mend := w.unwritable()
		go func() { _ = w.tenants.Run(ctx) }()
		time.Sleep(16*time.Hour + time.Minute)
		synctest.Wait()
		for _, id := range []peer.ID{"a", "x"} {
			if s := w.tenants.Silence(id); s.For != 16*time.Hour {
				t.Errorf("after 16 hours %s has been silent for %s", id, s.For)
			}
		}
		mend()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := w.left(t); got != "[lab-a lab-c lab-x shop-a]" {
			t.Errorf("after 18 hours: %s", got)
		}
		time.Sleep(7 * time.Hour) // the stranger's day is over
		synctest.Wait()
		if got := w.left(t); got != "[lab-a lab-c shop-a]" {
			t.Errorf("after 25 hours: %s", got)
		}
		cancel()
	})
}

// TestACallEndsASilenceThatIsStillWritten: the annotation of before the call cannot be removed.
func TestACallEndsASilenceThatIsStillWritten(t *testing.T) {
	w := newWorld()
	w.round(t, 0)
	w.round(t, 29*24*time.Hour)
	mend := w.unwritable()
	w.tenants.enter("c")
	w.tenants.leave("c")
	for range 12 {
		_, _ = w.tenants.round(t.Context(), 4*time.Hour)
	}
	mend()
	w.round(t, time.Hour)
	if s := w.tenants.Silence("c"); s.For != 45*time.Hour {
		t.Errorf("c called 45 hours ago and has been silent for %s", s.For)
	}
	if got := w.left(t); got != "[lab-c]" {
		t.Errorf("%s", got)
	}
}

func TestARestartRemembersAndACallForgets(t *testing.T) {
	w := newWorld()
	w.round(t, 0)
	for range 30 {
		w.round(t, 24*time.Hour-time.Minute)
	}
	w.restart()
	w.round(t, 0)
	if s := w.tenants.Silence("c"); s.For < 29*24*time.Hour {
		t.Fatalf("the silence of c is forgotten: %+v", s)
	}
	w.calls(t, "c")
	w.restart()
	w.round(t, 0)
	ns, err := w.client.CoreV1().Namespaces().Get(t.Context(), "lab-c", metav1.GetOptions{})
	if err != nil || ns.Annotations[SilentAnnotation] != "" {
		t.Errorf("c was heard, yet: %v %v", ns.Annotations, err)
	}
}

func TestNothingIsWrittenWhileAllAreThere(t *testing.T) {
	w := newWorld()
	w.peers["x"] = true
	for _, id := range []peer.ID{"a", "c", "x"} {
		w.tenants.enter(id)
	}
	w.client.ClearActions()
	for range 100 {
		w.round(t, time.Hour)
	}
	for _, a := range w.client.Actions() {
		if a.GetVerb() != "list" {
			t.Errorf("%s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

// TestThoseOfThisDeviceStay: a virtual cluster that sleeps is silent, and not gone.
func TestThoseOfThisDeviceStay(t *testing.T) {
	w := newWorld()
	w.tenants = New(Config{Client: w.client, IsPeer: func(id peer.ID) bool { return w.peers[id] }, Stays: func(id peer.ID) bool { return id == "c" }, Log: slog.New(slog.DiscardHandler)})
	w.round(t, 0)
	w.round(t, 400*24*time.Hour)
	if got := w.left(t); got != "[lab-c]" {
		t.Errorf("after a year: %s", got)
	}
	if s := w.tenants.Silence("c"); s != (Silence{}) {
		t.Errorf("%+v", s)
	}
}
