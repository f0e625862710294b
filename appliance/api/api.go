package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// Socket is the path of the supervisor's socket under a runtime folder.
func Socket(runDir string) string { return filepath.Join(runDir, "rivulet.sock") }

// Serve answers routes on the socket until ctx ends. ready is called once it listens.
func Serve(ctx context.Context, runDir string, routes http.Handler, ready func()) error {
	path := Socket(runDir)
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return fmt.Errorf("api: %w", err)
	}
	os.Remove(path) // the store's lock says that nobody else serves it
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return fmt.Errorf("api: %w", err)
	}
	srv := &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	ready()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("api: %w", err)
	}
	return nil
}

// JSON answers with what f returns, or with its error and status 500.
func JSON(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			v = failure{err.Error()}
		}
		json.NewEncoder(w).Encode(v)
	})
}

// Text is an answer that is one text.
type Text struct {
	Text string `json:"text"`
}

type failure struct {
	Error string `json:"error"`
}
