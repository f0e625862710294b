package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Socket is the path of the supervisor's socket under a runtime folder.
func Socket(runDir string) string { return filepath.Join(runDir, "rivulet.sock") }

// Serve answers on the socket until ctx ends. ready is called once it listens.
func Serve(ctx context.Context, runDir string, status func() Status, ready func()) error {
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
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(status())
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	ready()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("api: %w", err)
	}
	return nil
}

// ErrNotRunning is returned by Get when no supervisor answers.
var ErrNotRunning = errors.New("rivulet is not running here; start it with: sudo rivulet run")

// Get asks the supervisor for its status.
func Get(ctx context.Context, runDir string) (Status, error) {
	var st Status
	path := Socket(runDir)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://rivulet/v1/status", nil)
	if err != nil {
		return st, err
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return st, ErrNotRunning
	case errors.Is(err, fs.ErrPermission):
		return st, fmt.Errorf("%s may be opened by root only; use sudo", path)
	case err != nil:
		return st, fmt.Errorf("asking the supervisor: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return st, fmt.Errorf("the supervisor answered %s: %s", resp.Status, body)
	}
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil {
		return st, fmt.Errorf("the supervisor's answer is unreadable: %w; are the command and the running rivulet of the same version?", err)
	}
	return st, nil
}
