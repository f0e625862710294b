package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/fabric/httpserver"
	"rivulet/fabric/internal/desired"
)

// Serve answers the supervisor on a unix socket until ctx ends (nothing is removed: the next process takes over) or a
// stop request arrives (all is removed).
func (s *Server) Serve(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	lock, err := hold(socket + ".lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	os.Remove(socket) // of a process that was killed: this one has the lock
	unix.Umask(0o177) // only this socket and the lock are ever created here
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.broken:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.dev != nil {
			s.letGo()
		}
	}()
	if err := s.takeStreams(ctx, socket); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/config", desired.Config("tunnel", s.Apply))
	mux.HandleFunc("PUT /v1/deadline", s.answerDeadline)
	mux.HandleFunc("GET /v1/status", desired.Status(s.Status))
	mux.HandleFunc("GET /v1/paths", func(w http.ResponseWriter, r *http.Request) { s.streamPaths(ctx, w, r) })
	// The answer never ends while this process lives: its end shows the controller at once that the process has died.
	mux.HandleFunc("GET /v1/alive", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-ctx.Done():
		}
	})
	srv := httpserver.New(httpserver.Root, mux, s.log)
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Close(); err != nil {
			s.log.Warn("stopping", "err", err)
		}
		w.WriteHeader(http.StatusNoContent)
		cancel()
	})
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() { // pending answers are finished
		defer close(ended)
		grace, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		_ = srv.Shutdown(grace)
	})
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("tunnel: %w", err)
	}
	<-ended
	return nil
}

// holdLimit bounds the end of a process after a stop request.
const holdLimit = 3 * time.Second

// hold ensures that there is one process per socket: two would take the interface from each other. The kernel releases
// the lock when the process ends.
func hold(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("tunnel: %w", err)
	}
	for end := time.Now().Add(holdLimit); ; time.Sleep(20 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("tunnel: another rivulet-tunnel runs and holds %s: end it", path)
		}
	}
}
