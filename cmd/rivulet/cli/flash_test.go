package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rivulet/image/flash"
)

// What is wrong with the file for a device is told before its card is written.
func TestDeviceConfig(t *testing.T) {
	for content, words := range map[string]string{
		"name: lab-1\nwifi:\n  country: DE\n":  "",
		"nmae: lab-1\n":                        "nmae",
		"name: [\n":                            "correct it first",
		"name: Bad_Name\n":                     "bad-name",
		"":                                     "is empty",
		strings.Repeat("#", flash.MaxConfig+1): "larger than",
	} {
		file := filepath.Join(t.TempDir(), "rivulet.yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := deviceConfig(file)
		if words == "" && (err != nil || string(got) != content) || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%.30q: %q %v, want %q", content, got, err, words)
		}
	}
	if got, err := deviceConfig(""); got != nil || err != nil {
		t.Errorf("%q %v", got, err)
	}
	if _, err := deviceConfig(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "name a rivulet.yaml") {
		t.Error(err)
	}
}

// Where nobody looks at a terminal, a line for each tenth of each stage.
func TestMeter(t *testing.T) {
	var out bytes.Buffer
	m := &meter{out: &out}
	for _, s := range []flash.Stage{flash.Checking, flash.Writing} {
		for done := int64(0); done <= 1000; done++ {
			m.progress(s, done, 1000)
		}
		m.end()
	}
	m.progress(flash.Reading, 5, 0)
	if lines := strings.Count(out.String(), "\n"); lines != 22 || !strings.Contains(out.String(), "writing: 100 % of 1000 bytes\n") {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
}
