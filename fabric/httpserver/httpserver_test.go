package httpserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/test/harness/await"
)

// serve runs a server on loopback, and returns its address.
func serve(t *testing.T, b Bounds, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(b, h, slog.New(slog.DiscardHandler))
	go s.Serve(b.Listen(l))
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func send(t *testing.T, at, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// Who owes a byte of a request, or takes none of an answer, is hung up on; an answer with pauses, of a handler that
// thinks, and a connection that was taken over go on.
func TestProgress(t *testing.T) {
	const stall = 200 * time.Millisecond
	b := Bounds{Header: 8 << 10, Begin: time.Second, Stall: stall}
	ended := make(chan error, 1)
	silent := serve(t, b, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		ended <- err
	})
	send(t, silent, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nbegun")
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a request that stops: %v", err)
	}
	deaf := serve(t, b, func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 1<<20))
		}
		ended <- err
	})
	send(t, deaf, get)
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an answer that nobody takes: %v", err)
	}
	left := serve(t, b, func(http.ResponseWriter, *http.Request) {})
	c := send(t, left, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nbegun")
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Errorf("a request that stops, of which nobody reads the body: %v", err)
	}

	next := make(chan string)
	watch := serve(t, b, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		for text := range next {
			io.WriteString(w, text)
			w.(http.Flusher).Flush()
		}
	})
	lines := bufio.NewScanner(httpBody(t, send(t, watch, get)))
	for i := range 3 {
		time.Sleep(2 * stall) // a watch without events
		next <- fmt.Sprint(i, "\n")
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
		}
	}
	close(next)

	echo := serve(t, b, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() { // the handler returns before the session ends
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			io.Copy(c, c)
		}()
	})
	// And by a proxy, as sessions pass the supervisor.
	to, _ := url.Parse("http://" + echo)
	proxy := serve(t, b, httputil.NewSingleHostReverseProxy(to).ServeHTTP)
	for _, at := range []string{echo, proxy} {
		c := send(t, at, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		r := bufio.NewReader(c)
		if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(resp, err)
		}
		for range 2 {
			time.Sleep(2 * stall) // a shell that nobody types in
			io.WriteString(c, "hello")
			got := make([]byte, 5)
			if _, err := io.ReadFull(r, got); err != nil || string(got) != "hello" {
				t.Fatalf("%q %v", got, err)
			}
		}
	}
}

// A handler's own deadline counts when it is earlier than that of the listener, also one that is set before a piece is
// begun, and by somebody else.
func TestDeadlinesThatArePastOrTakenBack(t *testing.T) {
	b := Bounds{Header: 8 << 10, Begin: time.Minute, Stall: time.Hour}
	ended := make(chan error, 1)
	for what, deadline := range map[string]func() time.Time{
		"soon": func() time.Time { return time.Now().Add(200 * time.Millisecond) }, "past": func() time.Time { return time.Unix(1, 0) },
	} {
		writes := serve(t, b, func(w http.ResponseWriter, _ *http.Request) {
			err := http.NewResponseController(w).SetWriteDeadline(deadline())
			for err == nil {
				_, err = w.Write(make([]byte, 1<<20))
			}
			ended <- err
		})
		reads := serve(t, b, func(w http.ResponseWriter, r *http.Request) {
			err := http.NewResponseController(w).SetReadDeadline(deadline())
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			ended <- err
		})
		for kind, begin := range map[string]func(){
			"an answer": func() { send(t, writes, get) },
			"a request": func() { send(t, reads, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n") },
		} {
			begin()
			select {
			case err := <-ended:
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s, %s: %v", kind, what, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s, %s: it lasts", kind, what)
			}
		}
	}
	lasts := serve(t, b, func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Unix(1, 0))
		_ = c.SetWriteDeadline(time.Time{})
		io.WriteString(w, "told")
	})
	if got, err := io.ReadAll(httpBody(t, send(t, lasts, get))); string(got) != "told" || err != nil {
		t.Errorf("a deadline that was taken back: %q %v", got, err)
	}
}

// Whoever reads a body after its handler has returned, as a transport does whose request was answered before its end,
// gets an error.
func TestABodyAfterItsHandler(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		left := make(chan io.Reader, 1)
		s := httptest.NewUnstartedServer(nil)
		s.Config = New(Bounds{Streams: 8, Header: 8 << 10, Begin: time.Minute, Stall: 200 * time.Millisecond}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { left <- r.Body }), slog.New(slog.DiscardHandler))
		s.EnableHTTP2 = proto == "HTTP/2.0"
		s.StartTLS()
		defer s.Close()
		body, more := io.Pipe()
		go io.WriteString(more, "begun")
		resp, err := s.Client().Post(s.URL, "text/plain", body)
		if err != nil || resp.Proto != proto {
			t.Fatal(resp, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		more.Close()
		s.Client().CloseIdleConnections()
		of := <-left
		await.True(t, 10*time.Second, "the body to end", func() bool {
			_, err := of.Read(make([]byte, 16))
			return err != nil
		})
		for range 1000 { // the server forgets the answer a moment after the client has it
			_, _ = of.Read(make([]byte, 16))
		}
	}
}

func httpBody(t *testing.T, c net.Conn) io.Reader {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body
}

// Nobody has more than a Gate says, a party with few requests always gets in, and what has left is not counted.
func TestGate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := Gate{Each: rapid.SampledFrom([]int{4, 16}).Draw(t, "each"), Bytes: 16 << 10}
		g.Total = g.Each * 5 / 2
		own := max(1, g.Each/few)
		type one struct {
			party string
			leave func()
		}
		var in []one
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(in) > 0 && rapid.IntRange(0, 3).Draw(t, "leaves") == 0 {
				i := rapid.IntRange(0, len(in)-1).Draw(t, "who")
				in[i].leave()
				in = append(in[:i], in[i+1:]...)
				continue
			}
			party := fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "party"))
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X", strings.Repeat("x", rapid.IntRange(0, 2000).Draw(t, "bytes")))
			n := 0
			for _, o := range in {
				if o.party == party {
					n++
				}
			}
			leave, ok := g.enter(party, r)
			switch {
			case ok && n >= g.Each:
				t.Fatalf("%d requests of one", n+1)
			case ok && len(in) >= g.Total && n >= own:
				t.Fatalf("%d requests of all", len(in)+1)
			case !ok && n < own:
				t.Fatalf("one with %d is refused", n)
			case ok:
				in = append(in, one{party, leave})
			}
			if bytes := g.by[party].bytes; bytes > g.Bytes {
				t.Fatalf("%d bytes of one", bytes)
			}
		}
		for _, o := range in {
			o.leave()
		}
		if g.n != 0 || len(g.by) != 0 {
			t.Fatalf("%d are counted, %v", g.n, g.by)
		}
	})
}

// What clients do wrong has few lines a minute, of one text, however much of it there is.
func TestLogOfBadClientsIsBounded(t *testing.T) {
	var out strings.Builder
	s := New(Bounds{}, http.NotFoundHandler(), slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for i := range 1000 {
		s.ErrorLog.Printf("http: TLS handshake error from 192.0.2.1:%d: EOF\n", i)
	}
	if n := strings.Count(out.String(), "\n"); n == 0 || n > 60 { // a minute may end meanwhile
		t.Errorf("%d lines of 1000 bad clients", n)
	}
}

// Every listener has bounds of its head, of connections and of silence.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range Table {
		if b.What == "" || seen[b.What] || b.Header == 0 || b.Begin == 0 {
			t.Errorf("%+v", b)
		}
		seen[b.What] = true
		if c := b.Conns; c.Strangers > 0 && (c.PerSource == 0 || c.PerOwner == 0) {
			t.Errorf("%s: a stranger has no connection", b.What)
		}
	}
	l := serve(t, Bounds{Header: 1, Begin: time.Second, Conns: GatewayReady.Conns}, func(http.ResponseWriter, *http.Request) {})
	first := send(t, l, "")
	for range GatewayReady.Conns.PerSource {
		send(t, l, "")
	}
	await.True(t, 10*time.Second, "the oldest of one address too many to be closed", func() bool {
		first.SetReadDeadline(time.Now().Add(time.Millisecond))
		_, err := first.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	})
}
