package appliance

import (
	"bytes"
	"net/http"
	"strconv"

	"rivulet/appliance/api"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/version"
)

// savingRoutes give `rivulet backup` what only a running supervisor has: the store,
// which it has locked, and the names and versions of what runs.
func (s *System) savingRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/store", func(w http.ResponseWriter, _ *http.Request) {
		var copied bytes.Buffer // a page or two per peer
		if _, err := s.store.WriteTo(&copied); err != nil {
			api.JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, nil)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(copied.Len()))
		_, _ = w.Write(copied.Bytes())
	})
	mux.Handle("GET /v1/facts", api.JSON(func(*http.Request) (any, error) {
		build, err := upgrade.BuildID("/proc/self/exe")
		if err != nil {
			return nil, err
		}
		kube := s.engine.Version()
		if kube == "" {
			kube = version.Kubernetes()
		}
		return api.Facts{Name: s.name(), NodeName: s.nodeName, ID: s.id.ID(), Version: version.Version, Kubernetes: kube, Executable: s.exe, BuildID: build}, nil
	}))
}
