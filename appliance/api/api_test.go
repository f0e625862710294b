package api

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func serving(t *testing.T, mux http.Handler) string {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- Serve(ctx, dir, mux, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if left, _ := os.ReadDir(dir); slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() != "test" }) {
			t.Errorf("left behind: %v", left)
		}
	})
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("the socket does not listen")
	}
	return dir
}

func TestCallCarriesAnswersAndErrors(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/echo", JSON(func(r *http.Request) (any, error) {
		if r.ContentLength <= 0 {
			return nil, errors.New("nothing to echo; send something")
		}
		return map[string]int{"length": int(r.ContentLength)}, nil
	}))
	dir := serving(t, mux)
	var out struct{ Length int }
	if err := Call(t.Context(), dir, "POST", "/v1/echo", "hello", &out); err != nil || out.Length != 7 {
		t.Errorf("%+v %v", out, err)
	}
	if err := Call(t.Context(), dir, "POST", "/v1/echo", nil, nil); err == nil || err.Error() != "nothing to echo; send something" {
		t.Errorf("%v, want the supervisor's own words", err)
	}
	if err := Call(t.Context(), dir, "GET", "/v1/nowhere", nil, nil); err == nil || !strings.Contains(err.Error(), "same version") {
		t.Errorf("%v, want a cure", err)
	}
}

// Whoever cannot be asked is named in one sentence with a cure, without what the kernel says.
func TestNobodyAnswers(t *testing.T) {
	none, dead, hangs := t.TempDir(), t.TempDir(), t.TempDir()
	for dir, fate := range map[string]func(net.Listener){
		dead:  func(l net.Listener) { l.(*net.UnixListener).SetUnlinkOnClose(false); l.Close() },
		hangs: func(net.Listener) {},
	} {
		l, err := net.Listen("unix", Socket(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		fate(l)
	}
	for dir, want := range map[string]error{none: ErrNotRunning, dead: ErrNotRunning, hangs: context.DeadlineExceeded} {
		err := CallWithin(t.Context(), 200*time.Millisecond, dir, http.MethodGet, "/v1/status", nil, nil)
		if !errors.Is(err, want) || strings.Contains(err.Error(), "dial unix") || strings.Contains(err.Error(), "http://") || !strings.Contains(err.Error(), ": sudo ") {
			t.Errorf("%v, want %v with a cure", err, want)
		}
	}
	if err := error(forbidden("use sudo")); !errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Error("what may not be opened is not told from what is not there")
	}
}

// store writes its text, then fails if it has none.
type store string

func (s store) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, string(s))
	if s == "half" {
		err = errors.New("the disk is gone; look at it")
	}
	return int64(n), err
}

// What is copied comes whole, or as an error.
func TestBytesComeWholeOrNotAtAll(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/whole", Bytes(store("\x00whole")))
	mux.Handle("GET /v1/half", Bytes(store("half")))
	dir := serving(t, mux)
	resp, err := Do(t.Context(), dir, "GET", "/v1/whole", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, err := io.ReadAll(resp.Body); err != nil || string(raw) != "\x00whole" || resp.ContentLength != 6 {
		t.Errorf("%q, %d bytes, %v", raw, resp.ContentLength, err)
	}
	if resp, err := Do(t.Context(), dir, "GET", "/v1/half", nil); err == nil || err.Error() != "the disk is gone; look at it" {
		t.Errorf("%v %v, want the store's own words", resp, err)
	}
}
