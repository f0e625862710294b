package signed

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestRootsFile(t *testing.T) {
	a, b := base64.StdEncoding.EncodeToString(public(key(1))), base64.StdEncoding.EncodeToString(public(key(2)))
	p, err := ParseRoots("# words\n#\n\ngeneration 7\nroot " + a + " a\nroot " + b + " b, the spare\n")
	if err != nil || p.Oldest != 7 || p.Keys() != a+","+b || p.Roots[1].Name != "b, the spare" || len(p.Trust().Roots) != 2 || p.Trust().Oldest != 7 {
		t.Errorf("%v %+v", err, p)
	}
	for name, text := range map[string]string{
		"no generation": "root " + a + " a\n", "generation 0": "generation 0\n", "two generations": "generation 1\ngeneration 2\n", "no name": "generation 1\nroot " + a + "\n",
		"no key": "generation 1\nroot AAAA a\n", "twice": "generation 1\nroot " + a + " a\nroot " + a + " b\n", "a word": "generation 1\nhello\n", "empty": "",
	} {
		if p, err := ParseRoots(text); err == nil {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// The Makefile links in what the file has.
func TestTheMakefileReadsTheSame(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "image/signed"), 0o755); err != nil {
		t.Fatal(err)
	}
	a, b := base64.StdEncoding.EncodeToString(public(key(1))), base64.StdEncoding.EncodeToString(public(key(2)))
	file := filepath.Join(dir, RootsFile)
	if err := os.WriteFile(file, []byte("# root x y\n#  generation 5\ngeneration 7\nroot "+a+" a\nroot "+b+" b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := ReadRoots(file)
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for line := range strings.Lines(string(makefile)) {
		if strings.HasPrefix(line, "ROOT_KEYS ") || strings.HasPrefix(line, "MIN_GENERATION ") {
			lines.WriteString(line)
		}
	}
	cmd := exec.CommandContext(t.Context(), "make", "-f", "-", "-C", dir, "--no-print-directory")
	cmd.Stdin = strings.NewReader(lines.String() + "all:\n\t@echo '$(ROOT_KEYS) $(MIN_GENERATION)'\n")
	out, err := cmd.CombinedOutput()
	if got, want := strings.TrimSpace(string(out)), p.Keys()+" "+strconv.Itoa(p.Oldest); err != nil || got != want {
		t.Errorf("%v: %s, want %s", err, got, want)
	}
}
