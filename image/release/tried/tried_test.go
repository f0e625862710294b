package tried

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The log has what was said, and how it ended; a line of the run's own cannot be taken
// for the end, and an image that changes meanwhile was not tried.
func TestLog(t *testing.T) {
	for _, c := range []struct {
		name, script string
		passed       bool
		says, ends   string
	}{
		{"passes", "echo hello", true, "hello\n", "result passed\n"},
		{"fails", "echo result passed; exit 3", false, "\n result passed\n", "result failed: exit status 3\n"},
		{"no line's end", "printf 'result passed'; exit 1", false, "", "result failed: exit status 1\n"},
		{"changes", `echo more >> "$0"`, false, "", "while it was tried; try that one\n"},
	} {
		image := filepath.Join(t.TempDir(), "x.img.zst")
		if err := os.WriteFile(image, []byte("image"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := Do(image, []string{"sh", "-c", c.script, image}, &out)
		log, e := os.ReadFile(filepath.Join(filepath.Dir(image), "x"+End))
		if e != nil {
			t.Fatal(e)
		}
		r, e := Read(log)
		if e != nil || r.Passed != c.passed || (err == nil) != c.passed || r.Image != "x.img.zst" || len(r.Sum) != 64 {
			t.Errorf("%s: %v, %v, %+v", c.name, err, e, r)
		}
		if !strings.Contains(string(log), c.says) || !strings.HasSuffix(string(log), c.ends) || !strings.Contains(string(log), "begun ") {
			t.Errorf("%s: %s", c.name, log)
		}
	}
	if err := Do("/nowhere.img.zst", []string{"true"}, nil); err == nil || !strings.HasSuffix(err.Error(), "; make image") {
		t.Errorf("no image: %v", err)
	}
	for _, bad := range []string{"", "image x sha256 y\nresult passed\n", "result passed\n"} {
		if _, err := Read([]byte(bad)); err == nil {
			t.Errorf("%q is no log", bad)
		}
	}
}
