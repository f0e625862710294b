package api

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
)

// A reload says what it has changed, or why it has changed nothing.
func TestConfigurationIsShownAndReloaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	put := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("name: one")
	f := &config.Follower{NodeName: "node-1", Current: config.Open(config.Source{Path: path}), Apply: func(config.Config) {}, Health: new(health.Tracker), Log: slog.New(slog.DiscardHandler)}
	mux := http.NewServeMux()
	Configuration{Follower: f, Engine: pending{"reserve"}}.Routes(mux)
	dir := serving(t, mux)
	reload := func() (r Reloaded) {
		t.Helper()
		if err := Call(t.Context(), dir, "POST", "/v1/config/reload", nil, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	put("name: two")
	if r := reload(); len(r.Changed) != 1 || r.Changed[0] != "name" || r.Broken || r.File != path {
		t.Errorf("%+v", r)
	}
	put("nmae: three")
	if r := reload(); len(r.Changed) != 0 || len(r.Problems) != 1 || !r.Broken || r.From != config.FromLastGood {
		t.Errorf("%+v", r)
	}
	var v config.View
	if err := Call(t.Context(), dir, "GET", "/v1/config", nil, &v); err != nil || v.Values.Name != "two" || len(v.Pending) != 1 {
		t.Errorf("%+v %v", v, err)
	}
}

type pending []string

func (p pending) Pending() []string { return p }
