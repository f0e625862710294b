package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// badLink is an API server with any number of pods, at the end of a link that may be cut.
type badLink struct {
	mu      sync.Mutex
	cut     bool
	version int // of the newest pod; pod n has version n
	watches map[*io.PipeWriter]struct{}
	lists   int
	opened  int
}

func (l *badLink) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = cut; cut {
		for w := range l.watches {
			_ = w.CloseWithError(errors.New("http2: client connection lost"))
		}
		clear(l.watches)
	}
}

// add makes a pod, and shows it in all watches.
func (l *badLink) add() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	shown := event(l.version)
	for w := range l.watches {
		go func() { _, _ = io.WriteString(w, shown) }()
	}
}

func event(n int) string {
	return fmt.Sprintf(`{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-%d","namespace":"lab","resourceVersion":"%[1]d"}}}`+"\n", n)
}

func (l *badLink) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errors.New("the link is cut")
	}
	answer := func(body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
	}
	q := r.URL.Query()
	if q.Get("watch") == "" { // only after a streamed list has failed, which is a list too many
		l.lists++
		return answer(io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[]}`, l.version))))
	}
	out, in := io.Pipe()
	l.watches[in] = struct{}{}
	l.opened++
	first, from := "", 1
	if text := q.Get("resourceVersion"); text != "" {
		_, _ = fmt.Sscan(text, &from)
	}
	for n := from + 1; n <= l.version; n++ {
		first += event(n)
	}
	if q.Get("sendInitialEvents") != "" { // a list by way of a watch
		l.lists++
		first += fmt.Sprintf(`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}}`+"\n", l.version)
	}
	go func() { _, _ = io.WriteString(in, first) }()
	return answer(out)
}

// A watch over a link that breaks all the time shows what happens as soon as the link works for a moment, and lists
// nothing again.
func TestWatchOverALinkThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := &badLink{version: 1, watches: map[*io.PipeWriter]struct{}{}}
		var link Link
		config := &rest.Config{Host: "http://target", Transport: there}
		config.Wrap(link.Wrap)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		shown := make(chan string, 100)
		_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "lab", fields.Everything()), ObjectType: &corev1.Pod{},
			Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { shown <- o.(metav1.Object).GetName() }},
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go informer.RunWithContext(ctx)
		synctest.Wait() // the list has ended

		// Another request finds each time that the link works again, sooner or later.
		flap := func(times int) {
			for range times {
				there.setCut(true)
				time.Sleep(700 * time.Millisecond)
				there.setCut(false)
				time.Sleep(600 * time.Millisecond)
				link.Works()
				time.Sleep(100 * time.Millisecond)
			}
		}
		for n := 2; n < 12; n++ {
			flap(20)
			there.add()
			began := time.Now()
			select {
			case name := <-shown:
				if name != fmt.Sprintf("web-%d", n) {
					t.Fatalf("%s is shown, want web-%d", name, n)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("pod %d is not shown", n)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("pod %d is shown after %s", n, took)
			}
		}
		if there.lists != 1 || there.opened > 300 {
			t.Errorf("%d lists, want 1; %d watches in 280 s, want one each second at most", there.lists, there.opened)
		}

		// After a long cut as well, and it does not stay at it meanwhile.
		before := there.opened
		there.setCut(true)
		time.Sleep(10 * time.Minute)
		there.setCut(false)
		there.add()
		link.Works()
		began := time.Now()
		<-shown
		if took := time.Since(began); took > 2*time.Second || there.lists != 1 || there.opened != before+1 {
			t.Errorf("after a long cut a pod is shown after %s, %d lists, %d more watches", took, there.lists, there.opened-before)
		}
	})
}
