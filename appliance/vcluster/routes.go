package vcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"time"

	"rivulet/appliance/api"
	"rivulet/fabric/changes"
)

// logTail is how much of a control plane's log is shown, bytes.
const logTail = 64 << 10

// logNews is the interval of looks for new lines of a followed log.
const logNews = 300 * time.Millisecond

// Routes registers the routes of `rivulet vcluster`.
func (k *Manager) Routes(mux *http.ServeMux) {
	// own refuses a change that the object of a virtual cluster would revert.
	own := func(name, verb string) error {
		if c, err := k.get(name); err == nil {
			if o := c.record().Owner; o != (Owner{}) {
				return fmt.Errorf("%s is made of the object VirtualCluster %s, which says what it is; %s that: kubectl -n %s %s virtualcluster %s", name, o, verb, o.Namespace, verb, o.Name)
			}
		}
		return nil
	}
	// act calls f for a virtual cluster and answers with its new view.
	act := func(f func(ctx context.Context, name string) error) http.Handler {
		return api.JSON(func(r *http.Request) (any, error) {
			name := r.PathValue("name")
			if err := f(r.Context(), name); err != nil {
				return nil, err
			}
			return k.Get(name)
		})
	}
	mux.Handle("GET /v1/vclusters", api.JSON(func(*http.Request) (any, error) { return k.List(), nil }))
	mux.Handle("POST /v1/vclusters", api.JSON(func(r *http.Request) (any, error) {
		var spec Spec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		if _, err := k.Create(spec); err != nil {
			return nil, err
		}
		return started(r.Context(), k, spec.Name)
	}))
	mux.Handle("GET /v1/vclusters/{name}", act(func(context.Context, string) error { return nil }))
	mux.Handle("PATCH /v1/vclusters/{name}", api.JSON(func(r *http.Request) (any, error) {
		var to Change
		if err := json.NewDecoder(r.Body).Decode(&to); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		if err := own(r.PathValue("name"), "edit"); err != nil {
			return nil, err
		}
		return k.Change(r.Context(), r.PathValue("name"), to)
	}))
	mux.Handle("POST /v1/vclusters/{name}/pause", act(func(_ context.Context, name string) error {
		if err := own(name, "edit"); err != nil {
			return err
		}
		return k.Pause(name)
	}))
	mux.Handle("POST /v1/vclusters/{name}/sleep", act(func(ctx context.Context, name string) error { return Sleep(ctx, k, name) }))
	mux.Handle("POST /v1/vclusters/{name}/resume", act(func(ctx context.Context, name string) error {
		if err := own(name, "edit"); err != nil {
			return err
		}
		if err := k.Resume(name); err != nil {
			return err
		}
		_, err := started(ctx, k, name)
		return err
	}))
	mux.Handle("DELETE /v1/vclusters/{name}", api.JSON(func(r *http.Request) (any, error) {
		if r.URL.Query().Get("force") == "" {
			if err := own(r.PathValue("name"), "delete"); err != nil {
				return nil, err
			}
		}
		return struct{}{}, k.Delete(r.Context(), r.PathValue("name"))
	}))
	mux.HandleFunc("POST /v1/vclusters/{name}/snapshot", func(w http.ResponseWriter, r *http.Request) {
		s, err := k.Snapshot(r.Context(), r.PathValue("name"), r.URL.Query().Get("data") != "no")
		if err != nil {
			api.JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, r)
			return
		}
		defer s.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		if err := s.Write(r.Context(), w); err != nil {
			k.cfg.Log.Warn("a snapshot of a virtual cluster was cut short", "name", r.PathValue("name"), "err", err)
			panic(http.ErrAbortHandler) // the reader sees an incomplete answer
		}
	})
	mux.HandleFunc("POST /v1/vclusters/backup", func(w http.ResponseWriter, r *http.Request) {
		if err := k.Backup(r.Context(), w); err != nil {
			k.cfg.Log.Warn("a backup of the virtual clusters was cut short", "err", err)
			panic(http.ErrAbortHandler) // the reader sees an incomplete answer
		}
	})
	mux.Handle("POST /v1/vclusters/restore", api.JSON(func(r *http.Request) (any, error) {
		v, err := k.Restore(r.Context(), r.Body, r.URL.Query().Get("as"))
		if err != nil {
			return nil, err
		}
		return started(r.Context(), k, v.Name)
	}))
	mux.Handle("GET /v1/vclusters/{name}/kubeconfig", api.JSON(func(r *http.Request) (any, error) {
		if v, err := k.Get(r.PathValue("name")); err == nil && v.State == Paused {
			return nil, pausedError{v} // its port is closed
		}
		raw, err := k.rootKubeconfig(r.PathValue("name"))
		return api.Text{Text: string(raw)}, err
	}))
	mux.HandleFunc("GET /v1/vclusters/{name}/log", func(w http.ResponseWriter, r *http.Request) {
		path, err := k.Log(r.PathValue("name"))
		if err == nil && r.URL.Query().Get("follow") != "" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			followLog(r.Context(), path, w, http.NewResponseController(w).Flush)
			return
		}
		var text strings.Builder
		if err == nil {
			followLog(r.Context(), path, &text, nil)
		}
		api.JSON(func(*http.Request) (any, error) { return api.Text{Text: text.String()}, err }).ServeHTTP(w, r)
	})
}

// started returns the view of one once it is awake, or waits for memory: it starts by itself then.
func started(ctx context.Context, k *Manager, name string) (View, error) {
	if v, err := k.Await(ctx, name); err != nil && !v.WaitsForMemory {
		return v, err
	}
	return k.Get(name)
}

// followLog writes the end of a log, and what is added until ctx ends, flush fails or the log is removed; without flush
// only the end. A log that is shorter than before begins anew.
func followLog(ctx context.Context, path string, w io.Writer, flush func() error) {
	for at := int64(-1); ; {
		if f, err := os.Open(path); err == nil {
			if st, err := f.Stat(); err == nil && at < 0 {
				at = max(0, st.Size()-logTail)
			} else if err == nil && st.Size() < at {
				at = 0
			}
			n, err := io.Copy(w, io.NewSectionReader(f, at, math.MaxInt64-at))
			f.Close()
			if at += n; err != nil {
				return
			}
		} else if at >= 0 || !errors.Is(err, os.ErrNotExist) {
			return
		}
		if flush == nil || flush() != nil || !changes.Wait(ctx, logNews) {
			return
		}
	}
}
