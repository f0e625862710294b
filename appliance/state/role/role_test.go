package role

import (
	"os"
	"testing"

	"rivulet/appliance/state/paths"
)

func TestOf(t *testing.T) {
	for _, tc := range []struct {
		worker, gateway string
		want            Role
	}{
		{"", "", Role{}},
		{`{"node":"a"}`, "", Role{Worker: true}},
		{`{"node":"a","step":"wipe"}`, "", Role{Worker: true, Step: "wipe"}},
		{"", `{"worker":{"step":"of another file"}}`, Role{}},
		{"", `{"step":"follow","worker":{}}`, Role{Step: "follow"}},
		{"torn{", "", Role{Worker: true}},
	} {
		state := t.TempDir()
		for path, content := range map[string]string{paths.Worker(state): tc.worker, paths.Gateway(state): tc.gateway} {
			if content == "" {
				continue
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := Of(state); got != tc.want {
			t.Errorf("%s %s: %+v, want %+v", tc.worker, tc.gateway, got, tc.want)
		}
	}
}
