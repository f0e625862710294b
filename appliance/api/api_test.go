package api

import (
	"context"
	"errors"
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

func TestNobodyAnswers(t *testing.T) {
	if _, err := Get(t.Context(), t.TempDir()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("%v, want %v", err, ErrNotRunning)
	}
}
