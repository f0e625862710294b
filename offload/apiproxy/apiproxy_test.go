package apiproxy

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

func TestImpersonate(t *testing.T) {
	h := http.Header{
		"Impersonate-User":       {"system:admin"},
		"impersonate-uid":        {"0"}, // not canonical on purpose
		"Impersonate-Group":      {"system:masters"},
		"Impersonate-Extra-Role": {"x"},
		"X-Remote-User":          {"root"},
		"Authorization":          {"Bearer stolen"},
		"Cookie":                 {"a=b"},
		"Accept":                 {"application/json"},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io, " + bearer + "c3RvbGVu"},
	}
	Impersonate(h, As{User: "rivulet:peer:alice", Group: "rivulet:peers"})
	want := http.Header{
		"Impersonate-User":       {"rivulet:peer:alice"},
		"Impersonate-Group":      {"rivulet:peers", "system:authenticated"},
		"Accept":                 {"application/json"},
		"Sec-Websocket-Protocol": {"v5.channel.k8s.io"},
	}
	for key := range h {
		if strings.Join(h[key], "|") != strings.Join(want[key], "|") {
			t.Errorf("%s = %q, want %q", key, h[key], want[key])
		}
	}
	if len(h) != len(want) {
		t.Errorf("headers %v, want %v", h, want)
	}
}

// A body that holds the API server does not reach it, in whatever form it comes; every other body does, as it is.
func TestBodiesThatCostTooMuch(t *testing.T) {
	var got []byte
	reached := 0
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reached++
		got, _ = io.ReadAll(r.Body)
	}))
	defer api.Close()
	p, err := New(&rest.Config{Host: api.URL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Serve(w, r, As{User: "anna", Group: "users"}, r.URL.Path, r.URL.RawPath)
	}))
	defer front.Close()
	const pods, costly, usual = "/api/v1/namespaces/lab/pods", `{"kind":"Pod","spec":{"containers":[{"resources":{"requests":{"cpu":"1"},"limits":{"cpu":"1e999999999"}}}]}}`, `{"kind":"Pod","spec":{"containers":[{"resources":{"limits":{"cpu":"1500m"}}}]}}`
	for _, c := range []struct {
		what, method, path, media, body string
		header                          string
		code                            int
	}{
		{"a pod", "POST", pods, "application/json", costly, "", 400},
		{"without a type", "POST", pods, "", costly, "", 400},
		{"one that calls itself a watch", "POST", pods + "?watch=true", "application/json", costly, "", 400},
		{"one that wants to be another protocol", "POST", pods, "application/json", costly, "Upgrade", 400},
		{"a Job", "PUT", "/apis/batch/v1/namespaces/lab/jobs/j", "application/yaml", costly, "", 400},
		{"an apply", "PATCH", "/apis/apps/v1/namespaces/lab/replicasets/r", "application/apply-patch+yaml", costly, "", 400},
		{"a patch", "PATCH", pods + "/a", "application/strategic-merge-patch+json", costly, "", 400},
		{"a patch of a part", "PATCH", pods + "/a/resize", "application/json-patch+json", `[{"op":"add","path":"/x","value":"1e999999999"}]`, "", 400},
		{"a claim", "POST", "/api/v1/namespaces/lab/persistentvolumeclaims", "application/json", `{"spec":{"resources":{"requests":{"storage":"1e-999999999"}}}}`, "", 400},
		{"a deletion", "DELETE", pods + "/a", "application/json", costly, "", 400},
		{"another form", "POST", pods, "application/cbor", "\xa0", "", 400},
		{"a large one", "POST", pods, "application/json", `"` + strings.Repeat("a", maxBody) + `"`, "", 413},
		{"a usual pod", "POST", pods, "application/json", usual, "", 200},
		{"usual YAML", "POST", pods, "application/yaml", "spec: {}\n", "", 200},
		{"a request without a body", "GET", pods, "", "", "", 200},
		{"what a pod is sent", "POST", pods + "/a/proxy/upload", "application/octet-stream", "1e999999999", "", 200},
	} {
		before := reached
		// A reader without a length is sent in pieces.
		for _, body := range []io.Reader{strings.NewReader(c.body), io.MultiReader(strings.NewReader(c.body))} {
			q, err := http.NewRequestWithContext(t.Context(), c.method, front.URL+c.path, body)
			if err != nil {
				t.Fatal(err)
			}
			if c.media != "" {
				q.Header.Set("Content-Type", c.media)
			}
			if c.header != "" {
				q.Header.Set("Connection", "Upgrade")
				q.Header.Set("Upgrade", "SPDY/3.1")
			}
			answer, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != c.code || c.code == 200 && !bytes.Equal(got, []byte(c.body)) {
				t.Errorf("%s: %s %s; the API server got %.80q", c.what, answer.Status, text, got)
			}
		}
		if n := reached - before; n != map[bool]int{true: 2}[c.code == 200] {
			t.Errorf("%s: %d requests reached the API server", c.what, n)
		}
	}
}

// begun is a body that tells when it is read first.
type begun struct {
	io.ReadCloser
	once sync.Once
	tell func()
}

func (b *begun) Read(p []byte) (int, error) {
	b.once.Do(b.tell)
	return b.ReadCloser.Read(p)
}

// Large bodies are in memory a few at a time: of one user four, and the others are refused, to try again. Small ones pass
// meanwhile, and another user's do, also one's of that name at another API server.
func TestLargeBodiesAtOnce(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	defer api.Close()
	p, err := New(&rest.Config{Host: api.URL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	other, err := New(&rest.Config{Host: api.URL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	let := make(chan struct{}, 100)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &begun{ReadCloser: r.Body, tell: func() { let <- struct{}{} }}
		to, who := p, r.Header.Get("Who")
		if name, ok := strings.CutSuffix(who, "@other"); ok {
			to, who = other, name
		}
		to.Serve(w, r, As{User: who, Group: "users"}, r.URL.Path, r.URL.RawPath)
	}))
	defer front.Close()
	ask := func(who string, body io.Reader) int {
		r, err := http.NewRequest(http.MethodPost, front.URL+"/api/v1/namespaces/lab/configmaps", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Who", who)
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Error(err)
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	object := `{"data":{"a":"` + strings.Repeat("a", 2*smallBody) + `"}}`
	var ends []*io.PipeWriter
	codes := make(chan int, 100)
	for range large.Each { // bodies that do not end yet
		r, w := io.Pipe()
		ends = append(ends, w)
		defer w.Close() // or front waits for them
		go func() { codes <- ask("mallory", r) }()
		if _, err := io.WriteString(w, object[:smallBody]); err != nil {
			t.Fatal(err)
		}
	}
	for range ends {
		<-let
	}
	if code := ask("mallory", strings.NewReader(object)); code != http.StatusTooManyRequests {
		t.Errorf("another large one of the same user: %d", code)
	}
	if code := ask("mallory", strings.NewReader(`{}`)); code != 200 {
		t.Errorf("a small one: %d", code)
	}
	for _, who := range []string{"anna", "mallory@other"} {
		if code := ask(who, strings.NewReader(object)); code != 200 {
			t.Errorf("another user, %s: %d", who, code)
		}
	}
	for _, w := range ends {
		io.WriteString(w, object[smallBody:])
		w.Close()
	}
	for range ends {
		if code := <-codes; code != 200 {
			t.Errorf("a body that ends: %d", code)
		}
	}
	if code := ask("mallory", strings.NewReader(object)); code != 200 {
		t.Errorf("after that: %d", code)
	}
}
