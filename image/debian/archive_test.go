package debian

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A package that no mirror has any more comes from the archive of all versions, by name, version and architecture, and
// only with the pinned hash.
func TestWhatMirrorsHaveReplacedComesFromTheArchive(t *testing.T) {
	const sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of hello
	content, status := "hello", http.StatusOK
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.EscapedPath())
		w.WriteHeader(status)
		if strings.HasPrefix(r.URL.Path, "/mr/") {
			fmt.Fprint(w, `{"_comment":"foo","binary":"x","result":[{"architecture":"arm64","hash":"aa"},{"architecture":"amd64","hash":"bb"}]}`)
			return
		}
		fmt.Fprint(w, content)
	}))
	defer server.Close()
	tools, cache := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(tools, "apt-get"), []byte("#!/bin/sh\necho 'E: Version was not found' >&2\nexit 100\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools)
	a, err := NewApt("amd64", filepath.Join(tools, "apt"), "", "renew it")
	if err != nil {
		t.Fatal(err)
	}
	if a.archive != snapshots {
		t.Errorf("the archive is %q", a.archive)
	}
	a.archive = server.URL
	d := Deb{"amd64", "libx++", "1:2.0-1+b1", sum}
	file := filepath.Join(cache, d.File())
	for _, tc := range []struct {
		content, arch, want string
		status              int
	}{
		{"hellp", "amd64", "pinned is 2cf24dba", http.StatusOK},
		{"hello", "armhf", "has it for no armhf; if it was replaced by a newer one, renew it", http.StatusOK},
		{"hello", "amd64", "E: Version was not found", http.StatusNotFound},
	} {
		content, status, d.Arch = tc.content, tc.status, tc.arch
		if _, err := a.FetchAll([]Deb{d}, cache); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%+v: it is in the cache", tc)
		}
	}
	content, status, d.Arch, asked = "hello", http.StatusOK, "amd64", nil
	if got, err := a.FetchAll([]Deb{d}, cache); err != nil || got[0] != file {
		t.Fatalf("%q, %v", got, err)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "hello" {
		t.Errorf("%q, %v", raw, err)
	}
	if want := "/mr/binary/libx%2B%2B/1%3A2.0-1%2Bb1/binfiles /file/bb"; strings.Join(asked, " ") != want {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}
