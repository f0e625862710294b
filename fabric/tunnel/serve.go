package tunnel

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

// maxConfig bounds a Config, bytes; a peer takes about 300.
const maxConfig = 4 << 20

// Serve answers the supervisor on a unix socket until ctx ends (nothing is taken
// down: the process that comes next takes over) or it is told to stop (all is).
func (s *Server) Serve(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		l.Close()
		return fmt.Errorf("tunnel: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/config", func(w http.ResponseWriter, r *http.Request) {
		var cfg Config
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfig)).Decode(&cfg); err != nil {
			http.Error(w, "tunnel: the configuration is unreadable: "+err.Error(), http.StatusBadRequest)
			return
		}
		if err := s.Apply(cfg); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		st, err := s.Status()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(st)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.Close(); err != nil {
			s.log.Warn("stopping", "error", err)
		}
		w.WriteHeader(http.StatusNoContent)
		go srv.Shutdown(context.Background())
	})
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("tunnel: %w", err)
	}
	return nil
}
