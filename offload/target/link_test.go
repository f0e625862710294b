package target

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// A watch that hangs in a connection that lives is followed by another one, without a list;
// what is no watch is left alone.
func TestWatchesEnd(t *testing.T) {
	var lists, watches atomic.Int32
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/slow":
			time.Sleep(5 * time.Second)
			_, _ = io.WriteString(w, "done")
		case r.URL.Query().Get("sendInitialEvents") != "": // a list by way of a watch
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case r.URL.Query().Get("watch") == "":
			lists.Add(1)
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
		case watches.Add(1) == 1:
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-hold // it lives, and shows nothing
		case r.URL.Query().Get("resourceVersion") != "7": // the one after that goes on from 8
			<-hold
		default:
			_, _ = io.WriteString(w, `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"lab","resourceVersion":"8"}}}`+"\n")
			w.(http.Flusher).Flush()
			<-hold
		}
	}))
	defer server.Close()
	defer close(hold)
	config := &rest.Config{Host: server.URL} // a watch of less than a second without an event is followed by a list
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return transport{rt, &Link{}, 4 * time.Second} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	shown := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "lab", fields.Everything()), ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { shown <- o.(metav1.Object).GetName() }},
	})
	go informer.RunWithContext(ctx)
	select {
	case name := <-shown:
		if name != "web" || lists.Load() != 1 {
			t.Errorf("%s after %d lists", name, lists.Load())
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("the next watch shows nothing")
	}
	body, err := client.CoreV1().RESTClient().Get().AbsPath("/slow").DoRaw(ctx)
	if err != nil || string(body) != "done" {
		t.Errorf("a slow answer: %q, %v", body, err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A request whose time is over shows a broken link, one that its caller has cancelled shows nothing: otherwise each one
// would end the pauses of keys that the target refuses.
func TestACancelledRequestIsNoBrokenLink(t *testing.T) {
	var l Link
	waits := roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	get := func(ctx context.Context) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://target/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := l.Wrap(waits).RoundTrip(r); err == nil {
			resp.Body.Close()
			t.Error("an answer")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	get(ctx)
	if l.broken.Load() {
		t.Error("broken by a request that was cancelled")
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	get(ctx)
	if !l.broken.Load() {
		t.Error("not broken by a request whose time is over")
	}
}
