//go:build !race

package foreign

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/test/harness/await"
)

func configMap(i, bytes int) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a", i), Namespace: "y", ResourceVersion: "1"}, Data: map[string]string{"x": strings.Repeat("x", bytes)}}
}

func tell(w http.ResponseWriter, kind string, o any) error {
	return json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
}

func page(w http.ResponseWriter, next string, items ...corev1.ConfigMap) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1", Continue: next}, Items: items})
}

// run runs an informer of the server's ConfigMaps; stop ends it.
func run(t *testing.T, k *Kept, l *liar) (i cache.SharedIndexInformer, failed *atomic.Pointer[error], stop func()) {
	t.Helper()
	i = Informer(k, l.client, l.client.CoreV1().ConfigMaps("y"), &corev1.ConfigMap{}, "", func(o any) (any, error) { return o, nil })
	failed = &atomic.Pointer[error]{}
	if err := i.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failed.Store(&err) }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); i.RunWithContext(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return i, failed, stop
}

// However a server tells of objects without number, or of large ones: as a list, in pages, by a watch that is a list, by
// a watch after a list, as changes of what was never there. The informer does not keep more than the bounds.
func TestObjectsWithoutNumber(t *testing.T) {
	for what, tc := range map[string]struct {
		bytes   int
		watches bool // the list is a watch
		later   bool // they come after the list
		event   string
	}{
		"pages":                    {},
		"large ones in pages":      {bytes: 20 << 10},
		"a list by a watch":        {watches: true, event: "ADDED"},
		"large ones by a watch":    {bytes: 200 << 10, watches: true, event: "ADDED"},
		"changes in such a list":   {watches: true, event: "MODIFIED"},
		"a watch after a list":     {later: true, event: "ADDED"},
		"changes after a list":     {later: true, event: "MODIFIED"},
		"large ones after a list":  {bytes: 200 << 10, later: true, event: "ADDED"},
		"a list by a watch, later": {watches: true, later: true, event: "MODIFIED"},
	} {
		t.Run(what, func(t *testing.T) {
			var rounds atomic.Int64
			l := lies(t, func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				initial := q.Get("sendInitialEvents") != ""
				switch {
				case initial && !tc.watches:
					w.WriteHeader(http.StatusUnprocessableEntity)
				case q.Get("watch") == "" && (tc.event != "" || tc.later):
					page(w, "")
				case q.Get("watch") == "":
					from, _ := strconv.Atoi(q.Get("continue"))
					var items []corev1.ConfigMap
					for i := range 250 {
						items = append(items, *configMap(from+i, tc.bytes))
					}
					page(w, strconv.Itoa(from+250), items...)
				default:
					w.Header().Set("Content-Type", "application/json;stream=watch")
					if initial && tc.later {
						end := configMap(0, 0)
						end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
						_ = tell(w, "BOOKMARK", end)
					}
					rounds.Add(1)
					for i := 1; tell(w, tc.event, configMap(i, tc.bytes)) == nil; i++ { //nolint:revive // until it is cut off
					}
				}
			})
			k := &Kept{From: ann}
			i, failed, stop := run(t, k, l)
			await.True(t, time.Minute, "an end is made of it", func() bool { return failed.Load() != nil || rounds.Load() > 1 })
			if n := len(i.GetStore().ListKeys()); n > MaxObjects {
				t.Errorf("%d objects are kept", n)
			}
			if k.Bytes() > MaxKept {
				t.Errorf("%d bytes are kept", k.Bytes())
			}
			if err := failed.Load(); err != nil {
				refused(t, what, *err)
			} else if tc.event == "" {
				t.Error("nothing failed")
			}
			stop()
			await.True(t, time.Minute, "nothing counts after the end", func() bool { return k.Bytes() == 0 })
		})
	}
}

// What a target's informers keep counts together, and an object that is gone, or smaller, no more.
func TestWhatIsKeptIsCounted(t *testing.T) {
	orders := make(chan func(w http.ResponseWriter))
	l := lies(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); {
		case q.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case q.Get("watch") == "" && q.Get("continue") == "":
			if q.Get("limit") != strconv.Itoa(pageSize) || q.Get("resourceVersion") != "" {
				t.Errorf("a list without pages: %s", r.URL)
			}
			page(w, "more", *configMap(1, 1000))
		case q.Get("watch") == "":
			page(w, "", *configMap(2, 1000))
		default:
			w.Header().Set("Content-Type", "application/json;stream=watch")
			_ = http.NewResponseController(w).Flush()
			for {
				select {
				case do := <-orders:
					do(w)
					_ = http.NewResponseController(w).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
	})
	k := &Kept{From: ann}
	i, _, stop := run(t, k, l)
	await.True(t, time.Minute, "both pages", i.HasSynced)
	all := k.Bytes()
	if n := len(i.GetStore().ListKeys()); n != 2 || all < 2000 {
		t.Errorf("%d objects, %d bytes", n, all)
	}
	orders <- func(w http.ResponseWriter) { _ = tell(w, "MODIFIED", configMap(1, 5000)) }
	await.True(t, time.Minute, "it grows", func() bool { return k.Bytes() > all+3990 && k.Bytes() < all+4010 })
	orders <- func(w http.ResponseWriter) { _ = tell(w, "DELETED", configMap(1, 0)) }
	await.True(t, time.Minute, "it goes", func() bool { return k.Bytes() < all })
	orders <- func(w http.ResponseWriter) { _ = tell(w, "DELETED", configMap(7, 0)) } // nobody has it
	_, _, stop2 := run(t, k, l)
	await.True(t, time.Minute, "two count together", func() bool { return k.Bytes() > all })
	stop()
	stop2()
	await.True(t, time.Minute, "nothing counts after the end", func() bool { return k.Bytes() == 0 })
}

// A list that is read without an informer is bounded as well.
func TestPagesAreBounded(t *testing.T) {
	for what, bytes := range map[string]int{"large": 20 << 10, "empty": -1} {
		l := lies(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("limit") != strconv.Itoa(pageSize) {
				t.Errorf("a list without pages: %s", r.URL)
			}
			var items []corev1.ConfigMap
			for i := range 250 {
				if bytes >= 0 {
					items = append(items, *configMap(i, bytes))
				}
			}
			page(w, "more", items...)
		})
		got := 0
		err := Pages(t.Context(), ann, metav1.ListOptions{}, l.client.CoreV1().ConfigMaps("y").List, func(p *corev1.ConfigMapList) { got += p.Size() })
		if refused(t, what, err); got > MaxKept {
			t.Errorf("%s: %d bytes", what, got)
		}
	}
}
