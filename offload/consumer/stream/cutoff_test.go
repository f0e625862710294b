package stream

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	kubelet "k8s.io/kubelet/pkg/cri/streaming/remotecommand"
	"pgregory.net/rapid"
)

// target answers with what it is given, in the pieces it is given, and then ends.
type pieces struct {
	answers [][]byte
	got     bytes.Buffer
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.answers) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.answers[0])
	if p.answers[0] = p.answers[0][n:]; len(p.answers[0]) == 0 {
		p.answers = p.answers[1:]
	}
	return n, nil
}
func (p *pieces) Write(b []byte) (int, error) { return p.got.Write(b) }
func (p *pieces) Close() error                { return nil }

const errorStream, outStream spdy.StreamId = 3, 5

// opening is what a client sends; answer what a target does, with its own word on
// how the command ended or without.
func opening(t interface{ Fatal(...any) }) []byte {
	var out bytes.Buffer
	f, err := spdy.NewFramer(&out, &out)
	if err != nil {
		t.Fatal(err)
	}
	for id, kind := range map[spdy.StreamId]string{1: corev1.StreamTypeStdin, errorStream: corev1.StreamTypeError, outStream: corev1.StreamTypeStdout} {
		if err := f.WriteFrame(&spdy.SynStreamFrame{StreamId: id, Headers: http.Header{corev1.StreamType: {kind}}}); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func answer(t interface{ Fatal(...any) }, status string) []byte {
	var out bytes.Buffer
	f, err := spdy.NewFramer(&out, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, frame := range []spdy.Frame{
		&spdy.SynReplyFrame{StreamId: errorStream, Headers: http.Header{}},
		&spdy.DataFrame{StreamId: outStream, Data: []byte("some of the output")},
		&spdy.DataFrame{StreamId: outStream, Data: bytes.Repeat([]byte("more "), 20)},
	} {
		if err := f.WriteFrame(frame); err != nil {
			t.Fatal(err)
		}
	}
	if status != "" {
		if err := f.WriteFrame(&spdy.DataFrame{StreamId: errorStream, Data: []byte(status)}); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// ending reads frames and returns what came on the error stream.
func ending(t interface{ Fatal(...any) }, raw []byte) string {
	r := bytes.NewBuffer(raw)
	f, err := spdy.NewFramer(io.Discard, r)
	if err != nil {
		t.Fatal(err)
	}
	word := ""
	for r.Len() > 0 {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal("what passed is no whole frames:", err)
		}
		if d, ok := frame.(*spdy.DataFrame); ok && d.StreamId == errorStream {
			word += string(d.Data)
		}
	}
	return word
}

// Wherever the connection breaks, and in whatever pieces it came, the client gets
// whole frames and a word on how the command ended, the target's own if it came.
func TestACommandThatIsCutOffNeverEndsWell(t *testing.T) {
	const well = `{"status":"Success"}`
	rapid.Check(t, func(t *rapid.T) {
		sent, full := opening(t), answer(t, well)
		cut := rapid.IntRange(0, len(full)).Draw(t, "cut")
		target := &pieces{}
		for rest := full[:cut]; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			target.answers, rest = append(target.answers, rest[:n]), rest[n:]
		}
		c := newCutoff(target, "b")
		c.linger = 0
		for rest := sent; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "sent")
			if _, err := c.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if !bytes.Equal(target.got.Bytes(), sent) {
			t.Fatal("what the client sent is changed on the way")
		}
		got, err := io.ReadAll(c)
		word := ending(t, got)
		switch {
		case cut == len(full) && (err != nil || word != well || !bytes.Equal(got, full)):
			t.Fatalf("a good end is changed: %q %v", word, err)
		case cut < len(full) && (err == nil || !strings.Contains(word, "the connection to b was lost")):
			t.Fatalf("cut at %d of %d: %q %v", cut, len(full), word, err)
		}
	})
}

func TestFramesTooLargeToHoldPass(t *testing.T) {
	big := append([]byte{0, 0, 0, byte(outStream), 0, 0xff, 0xff, 0xff}, bytes.Repeat([]byte("x"), 100)...)
	c := newCutoff(&pieces{answers: [][]byte{answer(t, ""), big}}, "b")
	c.linger = 0
	if _, err := c.Write(opening(t)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if want := append(answer(t, ""), big...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestOnlyWhatIsUnderstoodIsGuarded(t *testing.T) {
	header := func(upgrade, version string) http.Header {
		return http.Header{"Upgrade": {upgrade}, "X-Stream-Protocol-Version": {version}}
	}
	for _, c := range []struct {
		code int
		h    http.Header
		want bool
	}{
		{101, header("SPDY/3.1", "v4.channel.k8s.io"), true}, {101, header("spdy/3.1", "v5.channel.k8s.io"), true},
		{101, header("SPDY/3.1", "v3.channel.k8s.io"), false}, {101, header("websocket", "v5.channel.k8s.io"), false},
		{403, header("SPDY/3.1", "v4.channel.k8s.io"), false},
	} {
		r := &http.Response{StatusCode: c.code, Header: c.h, Body: &pieces{}}
		guard(r, "b")
		if _, got := r.Body.(*cutoff); got != c.want {
			t.Errorf("%d %v: %v", c.code, c.h, got)
		}
	}
}

// endless is a command that reads all that it is sent, and answers with as much.
type endless struct{}

func (endless) ExecInContainer(_ context.Context, _ string, _ types.UID, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	_, err := io.Copy(out, in)
	return err
}

// zeros is an input that has no end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// noticed is an output of which it is told that it has begun.
type noticed chan struct{}

func (n noticed) Write(b []byte) (int, error) {
	select {
	case n <- struct{}{}:
	default:
	}
	return len(b), nil
}

// However much the client is about to send when the connection to the target breaks, it is
// told so: never "broken pipe", and never that all went well.
func TestWhoStillSendsIsToldTheEnd(t *testing.T) {
	target := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		opts, err := kubelet.NewOptions(r)
		if err != nil {
			t.Error(err)
			return
		}
		kubelet.ServeExec(w, r, endless{}, "pod", "", "main", []string{"cat"}, opts, time.Minute, time.Minute, []string{"v4.channel.k8s.io"})
	}))
	t.Cleanup(target.Close)
	to, err := url.Parse(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	transport := target.Client().Transport.(*http.Transport).Clone()
	transport.ForceAttemptHTTP2 = false
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
		return c, err
	}
	node := httptest.NewTLSServer(&httputil.ReverseProxy{Transport: transport, ModifyResponse: func(r *http.Response) error { guard(r, "b"); return nil }, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }})
	t.Cleanup(node.Close)
	at, err := url.Parse(node.URL + "/exec?input=1&output=1&command=cat")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: node.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, "POST", at)
		if err != nil {
			t.Fatal(err)
		}
		ended, begun := make(chan error, 1), make(noticed, 1)
		go func() {
			ended <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: zeros{}, Stdout: begun})
		}()
		select {
		case <-begun:
		case err := <-ended:
			t.Fatal("it ended before it began:", err)
		}
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		conns = nil
		mu.Unlock()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "the connection to b was lost") {
				t.Fatalf("it ends with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it does not end")
		}
	}
}

// A ping waits while anything passes, in either direction, and passes when nothing has for a while: an API server that
// closes before it has read one loses the end of what it sends.
func TestPingsWaitUntilNothingPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pings, more bytes.Buffer
		for to, frame := range map[*bytes.Buffer]spdy.Frame{&pings: &spdy.PingFrame{Id: 1}, &more: &spdy.DataFrame{StreamId: 1, Data: []byte("typed")}} {
			f, err := spdy.NewFramer(to, to)
			if err == nil {
				err = f.WriteFrame(frame)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		target, answers := &pieces{}, make(chan []byte)
		c := newCutoff(struct {
			io.Reader
			io.Writer
			io.Closer
		}{chunks(answers), target, target}, "b")
		defer c.Close()
		go io.Copy(io.Discard, c) // ends with answers
		defer close(answers)
		passed := func() int { // of the pings
			t.Helper()
			synctest.Wait()
			c.writing.Lock()
			defer c.writing.Unlock()
			return bytes.Count(target.got.Bytes(), pings.Bytes())
		}
		write := func(b []byte) {
			t.Helper()
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		write(opening(t))
		write(pings.Bytes())
		for range 10 { // output, and then input, for much longer than quiet
			time.Sleep(quiet - time.Second)
			answers <- answer(t, "")
		}
		for range 10 {
			time.Sleep(quiet - time.Second)
			write(more.Bytes())
		}
		if n := passed(); n != 0 {
			t.Fatalf("%d pings pass while the connection is used", n)
		}
		time.Sleep(quiet)
		if n := passed(); n != 1 {
			t.Fatalf("%d pings of one pass when nothing else does", n)
		}
		time.Sleep(2 * quiet)
		write(pings.Bytes())
		if n := passed(); n != 2 {
			t.Fatalf("%d pings of two pass in a connection that is quiet", n)
		}
	})
}

// chunks is a target that answers with what comes on the channel.
type chunks <-chan []byte

func (c chunks) Read(b []byte) (int, error) {
	next, ok := <-c
	if !ok {
		return 0, io.EOF
	}
	return copy(b, next), nil
}

// FuzzCutoff: whatever either side sends passes unchanged but for pings and half a frame at the end, and nothing panics.
func FuzzCutoff(f *testing.F) {
	f.Add([]byte{0x80, 3, 0, 1, 0, 0, 0, 0}, []byte{0, 0, 0, 3, 1, 0, 0, 2, 'o', 'k'})
	f.Fuzz(func(t *testing.T, sent, answered []byte) {
		target := &pieces{answers: [][]byte{answered}}
		c := newCutoff(target, "b")
		c.linger = 0
		defer c.Close()
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		var same frames
		waiting := len(c.pings)
		want := same.feed(sent, func(frame []byte) bool {
			if isPing(frame) {
				waiting--
			}
			return !isPing(frame) || waiting < 0
		})
		if !bytes.Equal(target.got.Bytes(), want) {
			t.Fatal("changed on the way up")
		}
		got, _ := io.ReadAll(c)
		if !bytes.HasPrefix(got, answered[:min(len(got), len(answered))]) && c.errors == 0 {
			t.Fatal("changed on the way down")
		}
	})
}
