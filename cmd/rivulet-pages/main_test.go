package main

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// The changelogs of packages have this version first, under this build's time, and each released one once, with its day.
func TestChangelogsOfPackages(t *testing.T) {
	const changes = "# Changes\n\n## Unreleased\n\n- x\n\n## 0.2.0 - 2027-01-01\n\n## 0.1.0 - 2026-12-01\n"
	built := time.Unix(1800000000, 0).UTC()
	for version, want := range map[string]string{
		"v0.2.0":       "0.2.0 15 Jan 2027,0.1.0 01 Dec 2026",
		"v0.2.1-dev.9": "0.2.1~dev.9 15 Jan 2027,0.2.0 01 Jan 2027,0.1.0 01 Dec 2026",
	} {
		dir := t.TempDir()
		if err := changelogs(dir, []byte(changes), version, "A <a@example.org>", built); err != nil {
			t.Fatal(err)
		}
		var of []string
		var entries []struct {
			Semver, Packager string
			Date             time.Time
			Changes          []struct{ Note string }
		}
		raw, err := os.ReadFile(filepath.Join(dir, "changelog.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(raw, &entries); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			of = append(of, strings.TrimSuffix(e.Semver, "-1")+e.Date.Format(" 02 Jan 2006"))
			if e.Packager != "A <a@example.org>" || len(e.Changes) != 1 || !strings.HasSuffix(e.Semver, "-1") {
				t.Errorf("%+v", e)
			}
		}
		if got := strings.Join(of, ","); got != want {
			t.Errorf("rpm, %s: %s, want %s", version, got, want)
		}
		of = nil
		for block := range strings.SplitSeq(strings.TrimSpace(unpacked(t, filepath.Join(dir, "changelog.gz"))), "\n\nrivulet (") {
			name, _, _ := strings.Cut(strings.TrimPrefix(block, "rivulet ("), ")")
			_, date, _ := strings.Cut(block, "\n -- A <a@example.org>  ")
			when, err := time.Parse(time.RFC1123Z, date)
			if err != nil {
				t.Fatal(err)
			}
			of = append(of, name+when.Format(" 02 Jan 2006"))
		}
		if got := strings.Join(of, ","); got != want {
			t.Errorf("deb, %s: %s, want %s", version, got, want)
		}
		if unpacked(t, filepath.Join(dir, "NEWS.gz")) != changes {
			t.Error("NEWS.gz is not CHANGELOG.md")
		}
	}
}

func unpacked(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
