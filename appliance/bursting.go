package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"rivulet/appliance/api"
	"rivulet/appliance/burst"
	"rivulet/appliance/lifecycle"
)

const cBurst = "burst"

// newBurst reads the list of burst targets.
func (s *System) newBurst() (*burst.Manager, error) {
	return burst.New(burst.Config{Store: s.store, Key: s.id.Key, Cluster: string(s.id.ID()), Health: &s.health, Gateway: s.newBurstGateway, Log: s.cfg.Log.With("component", cBurst)})
}

func (s *System) runBurst(ctx context.Context, stage *lifecycle.Stage) error {
	s.burst.Configure(s.settings.Now().Config.Burst)
	stage.Ready()
	return s.burst.Run(ctx)
}

// burstRoutes are `rivulet burst`.
func (s *System) burstRoutes(mux *http.ServeMux) {
	mux.Handle("GET /v1/burst", api.JSON(func(*http.Request) (any, error) { return s.burst.List(), nil }))
	mux.Handle("POST /v1/burst", api.JSON(func(r *http.Request) (any, error) {
		var q burst.Request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		report, err := s.burst.Add(r.Context(), q)
		if errors.Is(err, burst.ErrUnfit) {
			return burst.Added{Report: report}, nil
		}
		return burst.Added{Report: report, Added: err == nil}, err
	}))
	mux.Handle("DELETE /v1/burst/{name}", api.JSON(func(r *http.Request) (any, error) {
		return s.burst.Remove(r.Context(), r.PathValue("name"), r.URL.Query().Has("force"))
	}))
}
