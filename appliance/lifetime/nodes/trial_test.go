package nodes

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"rivulet/appliance/lifetime/upgrade"
	"rivulet/appliance/state/paths"
	"rivulet/fabric"
)

// While a version is on trial a device stays what it is in its cluster: an undone upgrade brings back the data of what it
// was.
func TestOnTrialADeviceStaysWhatItIs(t *testing.T) {
	state, restarted := t.TempDir(), false
	j := Joined{Info: Info{Cluster: "shelf", Node: "b"}, Removed: true} // which could leave without a tunnel
	if err := j.save(state); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(paths.Worker(state))
	if err != nil {
		t.Fatal(err)
	}
	d := New(&Device{Role: Role{Joined: &j}, State: state, Log: slog.New(slog.DiscardHandler), Fabric: func() *fabric.Fabric { return nil }, Restart: func() { restarted = true }})
	mux := http.NewServeMux()
	d.Routes(mux)
	t.Setenv(upgrade.TrialEnv, "v2")
	for _, what := range []string{"join", "leave", "standby", "switch"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/nodes/"+what, strings.NewReader("{}")))
		if w.Code < 400 || !strings.Contains(w.Body.String(), "rivulet upgrade --cancel") {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	if err := d.joinEmpty(t.Context(), nil, "token"); err == nil || !strings.Contains(err.Error(), "rivulet upgrade --cancel") {
		t.Errorf("by the configuration: %v", err)
	}
	if after, err := os.ReadFile(paths.Worker(state)); err != nil || string(after) != string(before) || restarted {
		t.Errorf("%s %v, restarted: %v", after, err, restarted)
	}
}
