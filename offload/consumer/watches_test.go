package consumer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// openWatches are the watches that a client has open, by path and selectors.
type openWatches struct {
	mu   sync.Mutex
	open map[string]int
}

func (o *openWatches) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		q := r.URL.Query()
		resp, err := next.RoundTrip(r)
		if err != nil || q.Get("watch") != "true" {
			return resp, err
		}
		key := r.URL.Path + " " + q.Get("fieldSelector") + q.Get("labelSelector")
		o.add(key, 1)
		resp.Body = &countedBody{resp.Body, sync.OnceFunc(func() { o.add(key, -1) })}
		return resp, nil
	})
}

func (o *openWatches) add(key string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open[key] += n; o.open[key] == 0 {
		delete(o.open, key)
	}
}

func (o *openWatches) all() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.open)
}

func (o *openWatches) sum() (n int) {
	for _, of := range o.all() {
		n += of
	}
	return n
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type countedBody struct {
	io.ReadCloser
	ended func()
}

func (b *countedBody) Close() error {
	b.ended()
	return b.ReadCloser.Close()
}

// provider is one of many targets that share a fake API server, where each has twins of its own.
type provider struct {
	somewhere
	offers chan offer.Offer
}

func (p *provider) Namespace(_ context.Context, home string) (string, error) {
	return p.id + "-" + home, nil
}
func (p *provider) Offers(context.Context) <-chan offer.Offer { return p.offers }
func (p *provider) Close()                                    {}

// providers are n targets at the API server.
func providers(n int, away kubernetes.Interface) (all []target.Spec) {
	for i := range n {
		id := fmt.Sprintf("b%02d", i)
		all = append(all, target.Spec{ID: id, Name: id, Short: id, Kind: target.Peer, Key: "one",
			New: func(name string, _ *slog.Logger) (target.Target, error) {
				offers := make(chan offer.Offer, 1)
				offers <- lends("amd64")
				return &provider{somewhere{name: name, id: id, client: away}, offers}, nil
			}})
	}
	return all
}

// TestWatchesOfHome counts the watches of home's API, and the memory, with more and more targets.
func TestWatchesOfHome(t *testing.T) {
	const spaces, objects, size = 5, 20, 8 << 10
	server := apiserver.Start(t)
	ctx := t.Context()
	space := func(i int) string { return fmt.Sprintf("lab%d", i) }
	for i := range spaces {
		_, err := server.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space(i), Labels: map[string]string{policy.NamespaceLabel: "any"}}}, metav1.CreateOptions{})
		must(t, err)
		for j := range objects {
			named, data := metav1.ObjectMeta{Name: fmt.Sprintf("some-%d", j)}, strings.Repeat("x", size)
			_, err := server.Client.CoreV1().Secrets(space(i)).Create(ctx, &corev1.Secret{ObjectMeta: named, StringData: map[string]string{"k": data}}, metav1.CreateOptions{})
			must(t, err)
			_, err = server.Client.CoreV1().ConfigMaps(space(i)).Create(ctx, &corev1.ConfigMap{ObjectMeta: named, Data: map[string]string{"k": data}}, metav1.CreateOptions{})
			must(t, err)
		}
		_, err = server.Client.CoreV1().Services(space(i)).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		must(t, err)
	}

	watches, away := &openWatches{open: map[string]int{}}, fake.NewClientset()
	home := rest.CopyConfig(server.Config)
	home.Wrap(watches.wrap)
	c, err := New(Config{Home: home, ID: "home", HomeNode: "home", NodeIP: netip.MustParseAddr("127.0.0.1"), Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(running) }()
	defer func() { stop(); <-done }()

	settled := func(n int) int {
		t.Helper()
		await.Empty(t, 4*time.Minute, fmt.Sprintf("%d targets have the Services of all namespaces", n), func(ctx context.Context) string {
			for _, spec := range providers(n, away) {
				for i := range spaces {
					if _, err := away.CoreV1().Services(spec.ID+"-"+space(i)).Get(ctx, "web", metav1.GetOptions{}); err != nil {
						return err.Error()
					}
				}
			}
			return ""
		})
		last, since := -1, time.Now()
		await.True(t, time.Minute, "the number of watches stays for a second", func() bool {
			if now := watches.sum(); now != last {
				last, since = now, time.Now()
			}
			return time.Since(since) > time.Second
		})
		return last
	}
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	t.Logf("%d offloaded namespaces, each with %d Secrets and ConfigMaps of %d kB", spaces, objects, size>>10)
	t.Logf("targets  watches of home  heap MB")
	of := map[int]int{}
	for _, n := range []int{1, 10, 30} {
		c.SetTargets(target.Peer, providers(n, away), true)
		of[n] = settled(n)
		t.Logf("%7d  %15d  %7.1f", n, of[n], heap())
	}
	for _, node := range []string{"home", "b00", "b29"} {
		_, err := server.Client.CoreV1().Pods(space(0)).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "example.com/c"}}}}, metav1.CreateOptions{})
		must(t, err)
	}
	await.Empty(t, time.Minute, "two targets have a pod each", func(context.Context) string {
		for _, n := range c.VirtualNodes() {
			want := 0
			if n.Name == "b00" || n.Name == "b29" {
				want = 1
			}
			if n.Pods != want {
				return fmt.Sprintf("%s has %d", n.Name, n.Pods)
			}
		}
		return ""
	})
	if of[30] > of[1] {
		t.Errorf("30 targets have %d watches of home open, one has %d", of[30], of[1])
	}
	kinds := map[string]int{}
	digits := regexp.MustCompile(`\d+`)
	for key, n := range watches.all() {
		kinds[digits.ReplaceAllString(key, "N")] += n
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		t.Logf("%4d × %s", kinds[kind], kind)
	}
	none := func(what, path string) {
		t.Helper()
		await.Empty(t, 2*time.Minute, what, func(context.Context) string {
			for key := range watches.all() {
				if strings.Contains(key, path) {
					return key
				}
			}
			return ""
		})
	}
	_, err = server.Client.CoreV1().Namespaces().Patch(ctx, space(1), types.MergePatchType, []byte(`{"metadata":{"labels":{"`+policy.NamespaceLabel+`":null}}}`), metav1.PatchOptions{})
	must(t, err)
	none("no watch of a namespace that is not offloaded any more", "/namespaces/"+space(1)+"/")
	if left, want := watches.sum(), of[30]-6; left != want { // six kinds
		t.Errorf("%d watches are left, not %d", left, want)
	}
	c.SetTargets(target.Peer, nil, true)
	none("no watch of offloaded namespaces is left without targets", "/namespaces/lab")
}
