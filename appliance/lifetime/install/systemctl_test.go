package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The image has the unit in /usr/lib, a package of a distribution elsewhere: only systemd's answer says whether there
// is a service to stop.
func TestSystemdIsAskedToStop(t *testing.T) {
	for answer, want := range map[string]string{
		"exit 0": "",
		"echo 'Failed to stop rivulet.service: Unit rivulet.service not loaded.' >&2; exit 5": "",
		"echo 'Failed to connect to bus' >&2; exit 1":                                         "Failed to connect to bus",
	} {
		dir := t.TempDir()
		asked := filepath.Join(dir, "asked")
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\necho \"$*\" >"+asked+"\n"+answer+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":/usr/bin:/bin")
		err := Stop(t.Context())
		if raw, _ := os.ReadFile(asked); string(raw) != "stop rivulet.service\n" {
			t.Errorf("%s: systemctl %q", answer, raw)
		}
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", answer, err, want)
		}
	}
}
