package courses

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/appliance/addons/customresource"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/vcluster/objects"
)

// term is a Course without members, its controller, and the clock of the device. It runs in the time of synctest.
type term struct {
	t     *testing.T
	dyn   *fake.FakeDynamicClient
	c     *controller
	ahead time.Duration // of the clock
	sure  bool          // NTP confirms it
	wrong bool          // it is not plausible
}

// newTerm is a Course that ends in 20 days, and is kept for 48 hours.
func newTerm(t *testing.T) *term {
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "t", "name": "db", "uid": "1"},
		"spec":     map[string]any{"keep": "48h", "expires": time.Now().Add(20 * 24 * time.Hour).UTC().Format(time.RFC3339)},
	}}
	u.SetAPIVersion(Resource.GroupVersion().String())
	u.SetKind(Kind)
	w := &term{t: t, dyn: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{Resource: "CourseList", objects.Resource: "VirtualClusterList"}, u)}
	w.restart()
	return w
}

func (w *term) restart() {
	now := func() clock.Status {
		out := clock.Status{Now: time.Now().Add(w.ahead), Plausible: !w.wrong, Synchronized: w.sure}
		if w.sure {
			out.Reference = clock.FromNTP
		}
		return out
	}
	w.c = &controller{Config: Config{Clock: now, Log: slog.New(slog.DiscardHandler)}, applied: map[types.UID]string{}, pauses: pauses{},
		Objects: customresource.Objects{Dynamic: w.dyn, Store: cache.NewStore(cache.MetaNamespaceKeyFunc), Recorder: record.NewFakeRecorder(1000)}}
}

// is is the Course, nil if it was deleted.
func (w *term) is() *Course {
	w.t.Helper()
	u, err := w.dyn.Resource(Resource).Namespace("t").Get(w.t.Context(), "db", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(w.t, err)
	c, err := FromAPI(u)
	must(w.t, err)
	return c
}

// runs passes time with a pass each minute, and reports whether the Course is there then.
func (w *term) runs(d time.Duration) bool {
	w.t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(checkEvery) {
		u, err := w.dyn.Resource(Resource).Namespace("t").Get(w.t.Context(), "db", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false
		}
		must(w.t, err)
		must(w.t, w.c.Store.Replace([]any{u}, ""))
		must(w.t, w.c.sync(w.t.Context()))
		if !time.Now().Before(end) {
			return w.is() != nil
		}
	}
}

func (w *term) phase(reason string) {
	w.t.Helper()
	c := w.is()
	if c == nil {
		w.t.Fatal("it was deleted")
	}
	if got := meta.FindStatusCondition(c.Status.Conditions, Expiring); got == nil || got.Reason != reason {
		w.t.Errorf("%+v, want %s", got, reason)
	}
}

// A clock that is ahead pauses a Course, for as long as it is, and deletes nothing.
func TestAClockThatIsAheadDeletesNoCourse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTerm(t)
		w.runs(time.Hour)
		w.phase("Running")
		w.ahead = 60 * 24 * time.Hour // a BIOS with the wrong month
		w.runs(0)
		w.phase("Expired")
		w.runs(3 * 24 * time.Hour) // nothing confirms it
		w.phase("Expired")
		w.ahead, w.sure = 0, true
		w.runs(0)
		w.phase("Running")
		if got := w.is().Status.PausedFor; got != "" {
			t.Errorf("it is not expired, and was paused for %s", got)
		}
		w.ahead = 60 * 24 * time.Hour // a wrong NTP server
		w.runs(47 * time.Hour)
		w.phase("Expired")
		w.ahead = 0
		w.runs(time.Hour)
		w.phase("Running")
		w.ahead = 60 * 24 * time.Hour
		w.runs(47 * time.Hour) // begun anew
		w.phase("Expired")
	})
}

// At its end a Course goes once it was paused for as long as it is to be kept, restarts included.
func TestACourseGoesAfterItWasPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTerm(t)
		w.sure = true
		time.Sleep(14 * 24 * time.Hour)
		w.runs(0)
		w.phase("ExpiresSoon")
		time.Sleep(100 * 24 * time.Hour) // the device is off
		w.restart()
		for range 4 {
			w.runs(10*time.Hour + 30*time.Minute)
			w.phase("Expired")
			time.Sleep(24 * time.Hour)
			w.restart()
		}
		if got, err := time.ParseDuration(w.is().Status.PausedFor); err != nil || got < 42*time.Hour-4*saveEvery || got > 42*time.Hour {
			t.Errorf("paused for %s, want four times ten and a half hours: each restart loses less than saveEvery", got)
		}
		w.wrong = true // before the clock is set: nothing is known
		w.runs(0)
		w.wrong = false
		if !w.runs(48 * time.Hour) {
			t.Error("a clock without a time has not begun the count anew")
		}
		w.sure = false
		if !w.runs(24 * time.Hour) {
			t.Error("it went by a clock that nothing confirms")
		}
		w.sure = true
		if w.runs(time.Minute) {
			t.Errorf("it is there after it was paused for %s", w.is().Status.PausedFor)
		}
	})
}

// An interval in which the controller does not work counts for no more than two passes.
func TestWhatWasNotSeenDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := pauses{}, &Course{}
		p.count(c, expired)
		time.Sleep(30 * 24 * time.Hour)
		if got := p.count(c, over); got != 2*checkEvery {
			t.Errorf("%s", got)
		}
		c.Status.PausedFor = "-5h"
		if got := (pauses{}).count(c, over); got != 0 {
			t.Errorf("a status that cannot be: %s", got)
		}
	})
}
