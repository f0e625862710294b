package backup

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
)

// After a restore a device is what the backup says: each file that decides its role is of the backup, or is set aside.
func TestARestoreReplacesTheWholeRole(t *testing.T) {
	kitchen := device(t, "kitchen", 5)
	with := map[string]string{gatewayName: `{"worker":{"node":"kitchen"}}`, deviceName: "kitchen's own"} // of a server with standbys
	for name, content := range with {
		write(t, filepath.Join(kitchen.State, name), content)
	}
	for name, from := range map[string]Paths{"alone": device(t, "kitchen", 5), "with standbys": kitchen} {
		at := device(t, "cellar", 3)
		for _, file := range role.Files(at.State) {
			write(t, file, `{"of":"cellar"}`)
		}
		o := options()
		o.Over = true
		r, err := Restore(t.Context(), bytes.NewReader(save(t, source(from, "kitchen"))), at, o)
		must(t, err)
		for _, file := range role.Files(at.State) {
			base := filepath.Base(file)
			want := ""
			if name == "with standbys" {
				want = with[base]
			}
			if raw, err := os.ReadFile(file); string(raw) != want || (err == nil) != (want != "") {
				t.Errorf("%s: %s is %q (%v), want %q", name, base, raw, err, want)
			}
			if got := read(t, filepath.Join(r.Aside, base)); got != `{"of":"cellar"}` {
				t.Errorf("%s: %s was set aside as %q", name, base, got)
			}
		}
		if now := role.Of(at.State); now != (role.Role{}) {
			t.Errorf("%s: it is %s", name, now)
		}
	}
}

// What a device is in the middle of becoming is finished first: a restore would be half of one thing and half of another.
func TestNoRestoreInTheMiddleOfAChange(t *testing.T) {
	stream := save(t, source(device(t, "kitchen", 5), "kitchen"))
	for file, content := range map[string]string{paths.Worker(""): `{"node":"cellar","step":"wipe"}`, paths.Gateway(""): `{"step":"follow","worker":{}}`} {
		at := device(t, "cellar", 3)
		write(t, filepath.Join(at.State, file), content)
		write(t, paths.Standby(at.State), "{}")
		before := contents(t, at)
		o := options()
		o.Over = true
		if _, err := Restore(t.Context(), bytes.NewReader(stream), at, o); err == nil || !strings.Contains(err.Error(), "systemctl start rivulet") {
			t.Errorf("%s: %v, want how to finish it", content, err)
		}
		same(t, before, contents(t, at))
	}
}

// TestARestoreEndsAStepThatCannotBeDone: without what the step needs, no start of rivulet ever finishes it.
func TestARestoreEndsAStepThatCannotBeDone(t *testing.T) {
	stream := save(t, source(device(t, "kitchen", 5), "kitchen"))
	for file, content := range map[string]string{paths.Worker(""): `{"node":"cellar","step":"lead"}`, paths.Gateway(""): `{"step":"follow","worker":{}}`} {
		at := device(t, "cellar", 3)
		write(t, filepath.Join(at.State, file), content)
		o := options()
		o.Over = true
		r, err := Restore(t.Context(), bytes.NewReader(stream), at, o)
		must(t, err)
		if got := read(t, filepath.Join(r.Aside, file)); got != content {
			t.Errorf("set aside is %q, want %q", got, content)
		}
	}
}
