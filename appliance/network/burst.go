package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"rivulet/appliance/api"
	"rivulet/appliance/burst"
)

// Burst serves `rivulet burst`.
func Burst(mux *http.ServeMux, m *burst.Manager) {
	mux.Handle("GET /v1/burst", api.JSON(func(*http.Request) (any, error) { return m.List(), nil }))
	mux.Handle("POST /v1/burst", api.JSON(func(r *http.Request) (any, error) {
		var q burst.Request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, fmt.Errorf("the request is unreadable: %w; are the command and the running rivulet of the same version?", err)
		}
		report, err := m.Add(r.Context(), q)
		if errors.Is(err, burst.ErrUnfit) {
			return burst.Added{Report: report}, nil
		}
		return burst.Added{Report: report, Added: err == nil}, err
	}))
	mux.Handle("DELETE /v1/burst/{name}", api.JSON(func(r *http.Request) (any, error) {
		return m.Remove(r.Context(), r.PathValue("name"), r.URL.Query().Has("force"))
	}))
}
