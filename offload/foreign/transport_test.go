//go:build !race

package foreign

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

var ann = Origin{Name: "peer ann", Cure: "rivulet peers"}

// liar is a server that answers as it likes.
type liar struct {
	config *rest.Config // guarded
	client kubernetes.Interface
	sent   atomic.Int64 // bytes, of all answers
}

func lies(t *testing.T, answer http.HandlerFunc) *liar {
	t.Helper()
	l := &liar{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(counting{w, &l.sent}, r) }))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	l.config = &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}, Proxy: NoProxy, QPS: -1}
	if err := Guard(l.config, ann); err != nil {
		t.Fatal(err)
	}
	var err error
	if l.client, err = kubernetes.NewForConfig(l.config); err != nil {
		t.Fatal(err)
	}
	return l
}

// refused fails unless err is an Unusable that says whose answer it was.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	var u *Unusable
	if !errors.As(err, &u) && (err == nil || !strings.Contains(err.Error(), "the answer of peer ann is not understood")) {
		t.Errorf("%s: %v", what, err)
	}
}

type counting struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}
func (c counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// endless writes what until the client has gone.
func endless(w io.Writer, what string) {
	for block := []byte(strings.Repeat(what, 1+64<<10/len(what))); ; {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// slack is what buffers of the kernel and of both programs hold.
const slack = 16 << 20

// An answer ends after 8 MiB, whether it says its length or not, whatever is asked for and whatever its status is.
func TestAnswersAreBounded(t *testing.T) {
	for what, begin := range map[string]func(http.ResponseWriter){
		"JSON":       func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/json") },
		"protobuf":   func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf") },
		"a refusal":  func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		"its length": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "1000000000000") },
	} {
		l := lies(t, func(w http.ResponseWriter, _ *http.Request) { begin(w); endless(w, `{"items":[`) })
		for call, do := range map[string]func() error{
			"list": func() error {
				_, err := l.client.CoreV1().PersistentVolumeClaims("y").List(t.Context(), metav1.ListOptions{})
				return err
			},
			"raw": func() error {
				_, err := l.client.Discovery().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/y/pods").DoRaw(t.Context())
				return err
			},
			"post": func() error {
				_, err := l.client.CoreV1().Events("y").Create(t.Context(), &corev1.Event{}, metav1.CreateOptions{})
				return err
			},
			"a pod whose name is log": func() error {
				_, err := l.client.CoreV1().Pods("pods").Get(t.Context(), "log", metav1.GetOptions{})
				return err
			},
		} {
			before := l.sent.Load()
			if err := do(); what != "a refusal" {
				refused(t, what+", "+call, err)
			} else if err == nil || len(err.Error()) > 2*maxRefusal {
				t.Errorf("%s, %s: %.100v", what, call, err)
			}
			if n := l.sent.Load() - before; n > MaxAnswer+slack {
				t.Errorf("%s, %s: %d bytes were taken", what, call, n)
			}
		}
	}
	l := lies(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		fmt.Fprint(w, "a: &a [x]\nb: [*a, *a]\n")
	})
	_, err := l.client.CoreV1().Pods("y").Get(t.Context(), "a", metav1.GetOptions{})
	refused(t, "YAML", err)
}

// No answer is asked to be compressed, and none that is is inflated.
func TestNothingIsInflated(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 { // MiB
		z.Write(make([]byte, 1<<20))
	}
	z.Close()
	for _, encoding := range []string{"gzip", "deflate", "identity, gzip", "br"} {
		asked := make(chan string, 10)
		l := lies(t, func(w http.ResponseWriter, r *http.Request) {
			asked <- r.Header.Get("Accept-Encoding")
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", encoding)
			w.Write(bomb.Bytes())
		})
		_, err := l.client.CoreV1().Pods("y").List(t.Context(), metav1.ListOptions{})
		refused(t, encoding, err)
		if a := <-asked; a != "identity" {
			t.Errorf("asked for %q", a)
		}
		resp, err := Client(&http.Client{Transport: &http.Transport{}}, ann).Get(httpOf(t, encoding, bomb.Bytes()))
		if refused(t, encoding, err); resp != nil {
			resp.Body.Close()
		}
	}
}

func httpOf(t *testing.T, encoding string, body []byte) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", encoding)
		w.Write(body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// No request goes where an answer points, by any client: not a list, not a write with a body, not a stream, not
// Rivulet's own routes.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var hits atomic.Int32
	victim := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	defer victim.Close()
	for _, code := range []int{300, 301, 302, 303, 304, 307, 308} {
		l := lies(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/chain" {
				w.Header().Set("Location", "/chain")
			} else {
				w.Header().Set("Location", victim.URL+"/index/_all")
			}
			w.WriteHeader(code)
		})
		pods := l.client.CoreV1().Pods("y")
		for what, do := range map[string]func() error{
			"list":   func() error { _, err := pods.List(t.Context(), metav1.ListOptions{}); return err },
			"watch":  func() error { _, err := pods.Watch(t.Context(), metav1.ListOptions{}); return err },
			"delete": func() error { return pods.Delete(t.Context(), "a", metav1.DeleteOptions{}) },
			"create": func() error {
				_, err := pods.Create(t.Context(), &corev1.Pod{}, metav1.CreateOptions{})
				return err
			},
			"patch": func() error {
				_, err := pods.Patch(t.Context(), "a", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
				return err
			},
			"logs": func() error {
				_, err := pods.GetLogs("a", &corev1.PodLogOptions{}).Stream(t.Context())
				return err
			},
			"exec by SPDY": func() error {
				at := l.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("y").Name("a").SubResource("exec").
					VersionedParams(&corev1.PodExecOptions{Command: []string{"true"}, Stdout: true}, scheme.ParameterCodec).URL()
				e, err := remotecommand.NewSPDYExecutor(l.config, "POST", at)
				if err != nil {
					t.Fatal(err)
				}
				return e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			},
			"own routes": func() error {
				plain, err := rest.HTTPClientFor(&rest.Config{Host: l.config.Host, TLSClientConfig: l.config.TLSClientConfig})
				if err != nil {
					t.Fatal(err)
				}
				resp, err := Client(plain, ann).Post(l.config.Host+"/v1/namespaces", "application/json", strings.NewReader("{}"))
				if resp != nil {
					resp.Body.Close()
				}
				return err
			},
		} {
			refused(t, fmt.Sprint(code, " ", what), do())
		}
		at := l.client.CoreV1().RESTClient().Get().Resource("pods").Namespace("y").Name("a").SubResource("exec").URL()
		e, err := remotecommand.NewWebSocketExecutor(l.config, "GET", at.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
			t.Errorf("%d, exec by WebSocket", code)
		}
	}
	if n := hits.Load(); n > 0 {
		t.Errorf("%d requests went where an answer pointed", n)
	}
}

// A client's connections lead to its server alone, or to the proxy in front of it.
func TestConnectionsLeadToTheServerAlone(t *testing.T) {
	var dialled []string
	dial := func(_ context.Context, _, addr string) (net.Conn, error) {
		dialled = append(dialled, addr)
		return nil, errors.New("none")
	}
	config := &rest.Config{Host: "https://10.77.255.254:7442/k8s", Dial: dial, Proxy: NoProxy}
	if err := Guard(config, ann); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"127.0.0.1:80", "10.77.255.254:6443", "10.43.0.1:7442", "10.77.255.254:74420", "localhost:7442", ""} {
		_, err := config.Dial(t.Context(), "tcp", addr)
		refused(t, addr, err)
	}
	if _, err := config.Dial(t.Context(), "tcp", "10.77.255.254:7442"); err == nil || len(dialled) != 1 {
		t.Errorf("%v %v", err, dialled)
	}
	by := &url.URL{Scheme: "http", Host: "proxy.campus.example:3128"}
	config = &rest.Config{Host: "https://campus.example", Dial: dial, Proxy: func(*http.Request) (*url.URL, error) { return by, nil }}
	if err := Guard(config, ann); err != nil {
		t.Fatal(err)
	}
	for i, addr := range []string{"campus.example:443", "proxy.campus.example:3128"} {
		if _, err := config.Dial(t.Context(), "tcp", addr); err == nil || len(dialled) != 2+i {
			t.Errorf("%v %v", err, dialled)
		}
	}
	_, err := config.Dial(t.Context(), "tcp", "other.campus.example:443")
	refused(t, "another of its site", err)
}

// An event of a watch ends after 4 MiB, however it is written; those before it arrive, and a watch has any length.
func TestEventsOfAWatchAreBounded(t *testing.T) {
	event := func(name string, n int) string {
		return fmt.Sprintf(`{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"y"},"data":{"a\"]}{[":%q}}}`+"\n", name, strings.Repeat("x", n))
	}
	for what, tail := range map[string]func(io.Writer){
		"a string":   func(w io.Writer) { fmt.Fprint(w, `{"type":"ADDED","object":"`); endless(w, "x") },
		"brackets":   func(w io.Writer) { fmt.Fprint(w, `{"type":"ADDED","object":`); endless(w, "[") },
		"fields":     func(w io.Writer) { fmt.Fprint(w, `{"type":"ADDED","object":{`); endless(w, `"a":"\"}",`) },
		"nothing":    func(w io.Writer) { endless(w, " ") },
		"no objects": func(w io.Writer) { endless(w, "1") },
	} {
		l := lies(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json;stream=watch")
			for i := range 20 { // 20 MiB in all
				fmt.Fprint(w, event(fmt.Sprint("a", i), 1<<20))
			}
			tail(w)
		})
		w, err := l.client.CoreV1().ConfigMaps("y").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for e := range w.ResultChan() {
			if e.Type == watch.Added {
				got++
			}
		}
		if got != 20 {
			t.Errorf("%s: %d events arrived", what, got)
		}
		if n := l.sent.Load(); n > 20<<20+MaxFrame+slack {
			t.Errorf("%s: %d bytes were taken", what, n)
		}
	}
	// protobuf has the length first
	l := lies(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		w.Write(binary.BigEndian.AppendUint32(nil, MaxFrame+1))
		endless(w, "\x00")
	})
	w, err := l.client.CoreV1().ConfigMaps("y").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range w.ResultChan() { //nolint:revive // it ends
	}
	if n := l.sent.Load(); n > slack {
		t.Errorf("protobuf: %d bytes were taken", n)
	}
	l = lies(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/cbor-seq")
		endless(w, "\x00")
	})
	_, err = l.client.CoreV1().ConfigMaps("y").Watch(t.Context(), metav1.ListOptions{})
	refused(t, "another format", err)
}

// The frames of protobuf are followed wherever reads end, and JSON's brackets wherever they are.
func TestFrames(t *testing.T) {
	var stream []byte
	for _, n := range []int{0, 1, 3, MaxFrame, 7} {
		stream = append(binary.BigEndian.AppendUint32(stream, uint32(n)), make([]byte, n)...)
	}
	for _, piece := range []int{1, 3, 5, 1 << 16} {
		f := &frames{ReadCloser: io.NopCloser(bytes.NewReader(stream)), binary: true, from: ann}
		if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, piece)); err != nil || n != int64(len(stream)) {
			t.Errorf("pieces of %d: %d of %d bytes, %v", piece, n, len(stream), err)
		}
	}
	for text, want := range map[string]int{`{"a":"}"}`: 0, `{"a":"\\"}`: 0, `{"a":"\""`: 9, `{}{}{`: 1, `[{}]` + "\n": 1, `"}"`: 3} {
		f := &frames{}
		if err := f.take([]byte(text)); err != nil || len(f.event) != want || len(f.ready) != len(text)-want {
			t.Errorf("%s: %d bytes of an event, want %d; %v", text, len(f.event), want, err)
		}
	}
}

// Answers and events with quantities that nobody can count are not decoded, whatever they say they are; others arrive.
func TestCostlyAnswers(t *testing.T) {
	costly, _ := podWith(t, "1e999999999")
	for _, kind := range []string{"application/json", "text/plain", ""} {
		for _, code := range []int{http.StatusOK, http.StatusForbidden} {
			l := lies(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", kind)
				w.WriteHeader(code)
				w.Write(costly)
			})
			_, err := l.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/y/pods/a").DoRaw(t.Context())
			if code == http.StatusOK {
				refused(t, kind, err)
			} else if err == nil || strings.Contains(err.Error(), "999") { // client-go says only that it was refused
				t.Errorf("%s, %d: %v", kind, code, err)
			}
		}
	}
	asJSON, asProto := podWith(t, "10000000000")
	badJSON, badProto := podWith(t, "1e999999999")
	for kind, events := range map[string][2][]byte{
		"application/json;stream=watch":                    {fmt.Appendf(nil, `{"type":"ADDED","object":%s}`, asJSON), fmt.Appendf(nil, `{"type":"ADDED","object":%s}`, badJSON)},
		"application/vnd.kubernetes.protobuf;stream=watch": {framed(t, asProto), framed(t, badProto)},
	} {
		l := lies(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Write(events[0])
			w.Write(events[1])
			w.Write(events[0])
		})
		w, err := l.client.CoreV1().Pods("y").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for e := range w.ResultChan() {
			if e.Type == watch.Added {
				got++
			}
		}
		if got != 1 {
			t.Errorf("%s: %d events arrived, want the first", kind, got)
		}
	}
}

// framed is an event of a watch in protobuf.
func framed(t *testing.T, object []byte) []byte {
	t.Helper()
	event := metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: object}}
	raw, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...)
}

// Logs have no bound, and arrive as they are written; another protocol than asked for is refused.
func TestStreamsPass(t *testing.T) {
	const length = 3 * MaxAnswer
	l := lies(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for range length >> 20 {
			w.Write(make([]byte, 1<<20))
		}
	})
	logs, err := l.client.CoreV1().Pods("y").GetLogs("a", &corev1.PodLogOptions{}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	if n, err := io.Copy(io.Discard, logs); err != nil || n != length {
		t.Errorf("%d bytes, %v", n, err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	taken := make(chan int, 10)
	go func() {
		for {
			c, err := raw.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				for all := 0; ; {
					n, err := c.Write(make([]byte, 64<<10))
					if all += n; err != nil {
						taken <- all
						return
					}
				}
			}()
		}
	}()
	config := &rest.Config{Host: "http://" + raw.Addr().String(), Proxy: NoProxy}
	if err := Guard(config, ann); err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = client.CoreV1().Pods("y").Get(ctx, "a", metav1.GetOptions{})
	refused(t, "another protocol", err)
	select {
	case n := <-taken:
		if n > slack {
			t.Errorf("%d bytes were taken", n)
		}
	case <-ctx.Done():
		t.Error("the connection is not closed")
	}
}
