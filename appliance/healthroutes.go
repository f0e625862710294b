package appliance

import (
	"net/http"
	"runtime/pprof"

	"rivulet/appliance/api"
	"rivulet/appliance/diagnose/prometheus"
)

// healthRoutes are what screens and monitors ask of the device's health.
func (s *System) healthRoutes(mux *http.ServeMux) {
	mux.Handle("GET /v1/health", api.JSON(func(*http.Request) (any, error) { return api.Health{Problems: s.problems()}, nil }))
	mux.HandleFunc("GET /v1/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", prometheus.ContentType)
		prometheus.Write(w, s.Status()) //nolint:errcheck // the asker has gone
	})
	mux.HandleFunc("GET /v1/goroutines", func(w http.ResponseWriter, _ *http.Request) {
		pprof.Lookup("goroutine").WriteTo(w, 2) //nolint:errcheck // the asker has gone
	})
	mux.Handle("POST /v1/doctor", api.JSON(func(*http.Request) (any, error) { s.lookAgain(); return struct{}{}, nil }))
}
