package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"rivulet/fabric/cure"
	"rivulet/fabric/httpserver"
)

// Socket is the path of the supervisor's socket in a runtime folder.
func Socket(runDir string) string { return filepath.Join(runDir, "rivulet.sock") }

// ServeAll is Serve, with the socket of ReaderGroup beside it. Without that group only root can read.
func ServeAll(ctx context.Context, runDir string, routes http.Handler, log *slog.Logger, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	readers.Go(func() {
		if err := toReaders(ctx, runDir, routes); err != nil {
			log.Warn("members of the group "+ReaderGroup+" cannot read; root can", "err", err)
		}
	})
	return Serve(ctx, runDir, routes, ready)
}

// Serve answers routes on the socket until ctx ends. It calls ready once it listens.
func Serve(ctx context.Context, runDir string, routes http.Handler, ready func()) error {
	l, err := listen(Socket(runDir), 0, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(Socket(runDir))
	return serve(ctx, httpserver.Root, l, routes, ready)
}

// listen creates a socket of a group. It gets its name only after its mode, so that no client opens it before.
func listen(path string, group int, mode fs.FileMode) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	hidden, err := os.MkdirTemp(filepath.Dir(path), ".s") // accessible to root only
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	defer os.RemoveAll(hidden)
	first := filepath.Join(hidden, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: first, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chown(first, -1, group)
	if err == nil {
		err = os.Chmod(first, mode)
	}
	if err == nil {
		err = os.Rename(first, path) // the store's lock excludes another server
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("api: %w", err)
	}
	return l, nil
}

func serve(ctx context.Context, b httpserver.Bounds, l net.Listener, h http.Handler, ready func()) error {
	srv := httpserver.New(b, h, slog.New(slog.DiscardHandler))
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	ready()
	if err := srv.Serve(b.Listen(l)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("api: %w", err)
	}
	return nil
}

// JSON answers with the result of f, or with its error and status 500.
func JSON(f func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			text, cure := cure.Split(err)
			v = failure{text, cure}
		}
		_ = json.NewEncoder(w).Encode(v)
	})
}

// Bytes answers with the output of from, or with its error and status 500.
func Bytes(from io.WriterTo) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var whole bytes.Buffer
		if _, err := from.WriteTo(&whole); err != nil {
			JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(whole.Len()))
		_, _ = w.Write(whole.Bytes())
	})
}

// Text is an answer of one text.
type Text struct {
	Text string `json:"text"`
}

// failure is the transport form of an error with its cure.
type failure struct {
	Error string `json:"error"`
	Cure  string `json:"cure,omitempty"`
}
