package httpserver

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/test/harness/await"
)

// serve2 runs a server of HTTP/2 on loopback.
func serve2(t *testing.T, b Bounds, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.Config = New(b, h, slog.New(slog.DiscardHandler))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// A transport that forwards a request may read the body when the answer has come and the handler has returned.
func TestABodyIsReadAfterItsHandler(t *testing.T) {
	bodies := make(chan io.Reader, 1)
	s := serve2(t, Bounds{Streams: 32, Stall: Patience}, func(_ http.ResponseWriter, r *http.Request) { bodies <- r.Body })
	for range 20 {
		from, to := io.Pipe()
		resp, err := s.Client().Post(s.URL, "", from)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ProtoMajor != 2 {
			t.Fatal(resp.Proto)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("the process ends: %v", p)
				}
			}()
			io.Copy(io.Discard, <-bodies)
		}()
		to.Close()
	}
}

// Nothing of a request stays in the memory of a connection that goes on: neither of one that was answered nor of one whose
// client has gone, before or while it is answered.
func TestNothingStaysOfARequest(t *testing.T) {
	var left atomic.Int64
	s := serve2(t, Bounds{Streams: 32, Stall: Patience}, func(w http.ResponseWriter, r *http.Request) {
		left.Add(1)
		runtime.SetFinalizer(r.Context(), func(any) { left.Add(-1) })
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "begun")
		switch r.URL.Path {
		case "/watch":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case "/write":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			io.WriteString(w, strings.Repeat("late", 4<<10))
			w.(http.Flusher).Flush()
		}
	})
	const each = 100
	for _, path := range []string{"/", "/watch", "/write"} {
		for range each {
			ctx, cancel := context.WithCancel(t.Context())
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader("body"))
			resp, err := s.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if path == "/" {
				if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "begun" {
					t.Fatal(string(b), err)
				}
			}
			cancel()
			resp.Body.Close()
		}
		// The last of them may be in a buffer that is used again.
		await.True(t, 20*time.Second, fmt.Sprintf("the memory of %d requests %s to be free", each, path), func() bool {
			runtime.GC()
			return left.Load() <= 5
		})
	}
}
