package httpserver

import (
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"
)

// A handler's own deadline holds, however often the client sends a byte, or takes one.
func TestAHandlersOwnDeadline(t *testing.T) {
	const own = 300 * time.Millisecond
	b := Bounds{Streams: 32, Header: 8 << 10, Begin: 10 * time.Second, Stall: Patience}
	for name, client := range map[string]func(http.HandlerFunc) (*http.Client, string){
		"HTTP/1": func(h http.HandlerFunc) (*http.Client, string) { return &http.Client{}, "http://" + serve(t, b, h) },
		"HTTP/2": func(h http.HandlerFunc) (*http.Client, string) { s := serve2(t, b, h); return s.Client(), s.URL },
	} {
		ended := make(chan error, 1)
		await := func(what string) error {
			select {
			case err := <-ended:
				return err
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: %s goes on", name, what)
				return nil
			}
		}
		c, url := client(func(w http.ResponseWriter, r *http.Request) {
			out := http.NewResponseController(w)
			_ = out.SetReadDeadline(time.Now().Add(own))
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
		})
		from, to := io.Pipe()
		go func() {
			for range time.Tick(own / 10) { // until the transport closes it
				if _, err := to.Write([]byte{0}); err != nil {
					return
				}
			}
		}()
		go func() {
			if resp, err := c.Post(url, "", from); err == nil {
				resp.Body.Close()
			}
			from.Close()
		}()
		if err := await("a request that never ends"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a request that never ends: %v", name, err)
		}
		c, url = client(func(w http.ResponseWriter, _ *http.Request) {
			out := http.NewResponseController(w)
			_ = out.SetWriteDeadline(time.Now().Add(own))
			var err error
			for err == nil {
				_, err = w.Write(make([]byte, 1<<20))
			}
			ended <- err
		})
		resp, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		if err := await("an answer that nobody takes"); err == nil {
			t.Errorf("%s: an answer that nobody takes is written", name)
		}
		resp.Body.Close()
	}
}
