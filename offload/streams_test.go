package offload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"

	"rivulet/test/harness/await"
)

// attach is an open attachment to pod talk.
type attach struct {
	typed *io.PipeWriter
	out   *collected
	sizes queue
	ended chan error
}

// collected is what came so far.
type collected struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (c *collected) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.Write(b)
}

func (c *collected) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.String()
}

func (d *device) attach(ctx context.Context, t *testing.T, tty, webSocket bool) *attach {
	t.Helper()
	r := d.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name("talk").SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Stdin: true, Stdout: true, Stderr: !tty, TTY: tty}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(d.Config, "GET", r.URL().String())
	if !webSocket {
		e, err = remotecommand.NewSPDYExecutor(d.Config, "POST", r.URL())
	}
	must(t, err)
	a := &attach{out: &collected{}, sizes: make(queue), ended: make(chan error, 1)}
	var in *io.PipeReader
	in, a.typed = io.Pipe()
	options := remotecommand.StreamOptions{Stdin: in, Stdout: a.out, Tty: tty}
	if tty {
		options.TerminalSizeQueue = a.sizes
	} else {
		options.Stderr, options.Stdout = a.out, io.Discard
	}
	go func() { a.ended <- e.StreamWithContext(ctx, options) }()
	return a
}

// attachments are those with a terminal, whose sizes are told, and without.
func (d *device) attachments(t *testing.T) {
	for _, webSocket := range []bool{true, false} {
		for _, tty := range []bool{true, false} {
			t.Run(fmt.Sprintf("terminal %v, WebSocket %v", tty, webSocket), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
				defer cancel()
				a := d.attach(ctx, t, tty, webSocket)
				defer close(a.sizes)
				says := func(want string) {
					t.Helper()
					await.Empty(t, time.Minute, fmt.Sprintf("it says %q", want), func(context.Context) string {
						if got := a.out.String(); got != want {
							return fmt.Sprintf("%q", got)
						}
						return ""
					})
				}
				said := ""
				for i, word := range []string{"one ", "two "} {
					if tty {
						size := remotecommand.TerminalSize{Width: uint16(80 + i), Height: 24}
						select {
						case a.sizes <- size:
						case err := <-a.ended:
							t.Fatalf("it ended: %v", err)
						}
						said += fmt.Sprintf("[%dx24]", size.Width)
						says(said)
					}
					_, err := io.WriteString(a.typed, word)
					must(t, err)
					said += strings.ToUpper(word)
					says(said)
				}
				must(t, a.typed.Close())
				if err := <-a.ended; err != nil {
					t.Errorf("an attachment ends with %v", err)
				}
			})
		}
	}
}

// forward opens a port-forward to a port of a pod and returns where it listens.
func (d *device) forward(t *testing.T, name string, port int, webSocket bool) (address string, stop func()) {
	t.Helper()
	r := d.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace("lab").Name(name).SubResource("portforward")
	transport, upgrader, err := spdy.RoundTripperFor(d.Config)
	must(t, err)
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", r.URL())
	if webSocket {
		dialer, err = portforward.NewSPDYOverWebsocketDialer(r.URL(), d.Config)
		must(t, err)
	}
	end, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(dialer, []string{fmt.Sprint("0:", port)}, end, ready, io.Discard, io.Discard)
	must(t, err)
	failed := make(chan error, 1)
	go func() { failed <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-failed:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	must(t, err)
	return fmt.Sprint("127.0.0.1:", ports[0].Local), func() { close(end); <-failed }
}

// manyForwards are twenty at once, two connections in each, over a link that stalls.
func (d *device) manyForwards(t *testing.T) {
	var addresses []string
	for range 20 {
		address, stop := d.forward(t, "talk", 8080, false)
		defer stop()
		addresses = append(addresses, address, address)
	}
	d.fabric.stall.set(true)
	time.AfterFunc(3*time.Second, func() { d.fabric.stall.set(false) })
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(90 * time.Second)) // fails only on a closed one
			in := strings.Repeat(fmt.Sprintf("answer %d ", i), 10<<10)
			go io.WriteString(conn, in)
			out := make([]byte, len(in))
			if n, err := io.ReadFull(conn, out); err != nil || string(out) != strings.ToUpper(in) {
				t.Errorf("connection %d: %d of %d bytes: %v", i, n, len(in), err)
			}
		})
	}
	wg.Wait()
}

// largeFile goes there and back, as cp does it, while the link stalls now and then
// and once for longer than a peer may be silent for half of its time.
func (d *device) largeFile(t *testing.T) {
	const size = 32 << 20
	in := make([]byte, size)
	for i := range in {
		in[i] = 'a' + byte(rand.IntN(26)) // its capitals are as many bytes
	}
	want := sha256.Sum256(bytes.ToUpper(in))
	steady := d.fabric.flap("a link that stalls")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	read := &halfway{r: bytes.NewReader(in), at: size / 2, then: func() {
		steady()
		d.fabric.stall.set(true)
		time.Sleep(7 * time.Second) // that nothing ends is the point
		d.fabric.stall.set(false)
	}}
	out, err := d.shouts(ctx, read)
	if got := sha256.Sum256([]byte(out)); err != nil || got != want {
		t.Errorf("%d of %d bytes, %v", len(out), size, err)
	}
	if read.then != nil {
		t.Error("the link did not stall")
		steady()
	}
}

// halfway calls then once when that much was read.
type halfway struct {
	r    io.Reader
	at   int
	then func()
}

func (h *halfway) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	if h.at -= n; h.at <= 0 && h.then != nil {
		then := h.then
		h.then = nil
		then()
	}
	return n, err
}
