package datastore

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/health"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/version"
	"rivulet/fabric/changes"
)

// An older Kubernetes never opens data of a newer one; what cannot be read counts as newer.
func TestClaim(t *testing.T) {
	const older, same, newer = "v1.34.9+k3s1", "v1.35.1+k3s1", "v1.36.0+k3s1"
	said := `{"kubernetes":"` + same + `","rivulet":"v0.5.0"}` + "\n"
	for _, tc := range []struct {
		name, was, ours string
		then            string // what the file has afterwards; the same again if it is refused
		words           string
	}{
		{"a new cluster", "", same, `{"kubernetes":"` + same + `","rivulet":"v9.0.0"}` + "\n", ""},
		{"the same minor version", said, "v1.35.0+k3s1", said, ""},
		{"a newer one", said, newer, `{"kubernetes":"` + newer + `","rivulet":"v9.0.0"}` + "\n", ""},
		{"an older one", said, older, said, "use rivulet v0.5.0 or newer: sudo rivulet upgrade FILE"},
		{"one that does not know itself", said, "", said, "sudo rivulet upgrade FILE"},
		{"one that does not know itself, and a new cluster", "", "", "", ""},
		{"half a file", `{"kuber`, same, `{"kuber`, "sudo rm "},
		{"a file without a version", `{}`, same, `{}`, "sudo rm "},
	} {
		file := filepath.Join(t.TempDir(), "db", "writer.json")
		if tc.was != "" {
			if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(tc.was), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		err := writer{tc.ours, "v9.0.0"}.claim(file)
		if (tc.words == "") != (err == nil) || err != nil && (!errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), tc.words)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.words)
		}
		if now, _ := os.ReadFile(file); string(now) != tc.then {
			t.Errorf("%s: %q, want %q", tc.name, now, tc.then)
		}
	}
}

// Neither the cluster's engine nor a virtual cluster's control plane opens the database of a newer Kubernetes, and nothing
// in it changes; the device says what to do.
func TestDataOfANewerKubernetesStayAsTheyAre(t *testing.T) {
	state := t.TempDir()
	path := Path(state)
	fill(t, path, 1, 50)
	newer := []byte(`{"kubernetes":"v1.999.0","rivulet":"v7.0.0"}`)
	for _, file := range []string{paths.Writer(state), path + ".writer"} {
		if err := os.WriteFile(file, newer, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &Guard{State: state, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}
	err := g.Prepare(t.Context(), serving{})
	problems := g.Health.Problems()
	if !errors.Is(err, ErrNewer) || len(problems) != 1 || problems[0].Code != health.DatastoreNewer.Code || !strings.Contains(problems[0].Cure, "rivulet upgrade") {
		t.Errorf("the cluster: %v, %+v", err, problems)
	}
	if err := Readable(state); !errors.Is(err, ErrNewer) {
		t.Errorf("what is to be installed: %v", err)
	}
	if _, err := Begin(t.Context(), path, changes.BootID()); !errors.Is(err, ErrNewer) {
		t.Errorf("a virtual cluster: %v", err)
	}
	if now := newest(t, path); now != 50 || Kubernetes(state) != "v1.999.0" {
		t.Errorf("revision %d, Kubernetes %s", now, Kubernetes(state))
	}
	if err := os.WriteFile(paths.Writer(state), []byte(`{"kubernetes":"v1.1.0","rivulet":"v0.0.1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if version.LinkedKubernetes = "v1.35.0"; version.Kubernetes() == "" {
		t.Fatal("the test does not know its Kubernetes")
	}
	defer func() { version.LinkedKubernetes = "" }()
	if err := g.Prepare(t.Context(), serving{}); err != nil || len(g.Health.Problems()) != 0 || Kubernetes(state) != version.Kubernetes() {
		t.Errorf("an older one's: %v, %+v, %s", err, g.Health.Problems(), Kubernetes(state))
	}
}
