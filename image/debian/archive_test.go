package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
			fmt.Fprint(w, `{"_comment":"foo","binary":"x","result":[{"architecture":"arm64","hash":"aa"},{"architecture":"amd64","hash":"bb"}],"fileinfo":{"bb":[{"name":"x.deb","size":5}]}}`)
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
	if a.archive.address != snapshots {
		t.Errorf("the archive is %q", a.archive.address)
	}
	a.archive = archive{address: server.URL}
	d := Deb{"amd64", "libx++", "1:2.0-1+b1", sum}
	file := filepath.Join(cache, d.File())
	for _, tc := range []struct {
		content, arch, want string
		status              int
	}{
		{"hello world", "amd64", "it has not the 5 bytes", http.StatusOK},
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
	content, status, d.Arch, asked, a.archive.lists = "hello", http.StatusOK, "amd64", nil, nil
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

// Source files come from the mirror by the real apt, and those that it lacks from the archive; both are servers of the test.
// What is missing at both, or another one, is named with all others that are.
func TestSourcesThatTheMirrorLacksComeFromTheArchive(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("needs apt-get: Debian")
	}
	const list = "/archive/mr/package/bash/5-1/srcfiles"
	var mu sync.Mutex              // apt asks, too, whose process orders nothing here
	var served map[string][]string // what is answered, one after the other, by path; the last one again and again
	asked := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answers := served[r.URL.Path]
		n := asked[r.URL.Path]
		asked[r.URL.Path]++
		if len(answers) == 0 {
			http.NotFound(w, r)
			return
		}
		switch answer := answers[min(n, len(answers)-1)]; answer {
		case "404":
			http.NotFound(w, r)
		case "503":
			http.Error(w, "busy", http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, answer)
		}
	}))
	defer server.Close()
	own := SourceVersion{"bash", "5-1"}
	dsc, tar, diff := SourceFile{own, "bash_5-1.dsc", hello}, SourceFile{own, "bash_5.orig.tar.xz", hello}, SourceFile{own, "bash_5-1.diff.gz", hello}
	other := SourceFile{SourceVersion{"glibc", "2-1"}, "glibc_2-1.dsc", hello} // the mirror has 2-2
	const stanza = "Package: %s\nBinary: x\nVersion: %s\nArchitecture: any\nFormat: 1.0\nDirectory: .\nFiles:\n%sChecksums-Sha256:\n%s\n"
	entries := func(hash string, names ...string) (all string) {
		for _, name := range names {
			all += " " + hash + " 5 " + name + "\n"
		}
		return all
	}
	const md5 = "5d41402abc4b2a76b9719d911017c592"
	mirror := map[string][]string{"/mirror/./Sources": {
		fmt.Sprintf(stanza, "bash", "5-1", entries(md5, dsc.Name, tar.Name, diff.Name), entries(hello, dsc.Name, tar.Name, diff.Name)) +
			fmt.Sprintf(stanza, "glibc", "2-2", entries(md5, "glibc_2-2.dsc"), entries(hello, "glibc_2-2.dsc")),
	}}
	const listed = `{"result":[{"hash":"aa"}],"fileinfo":{"aa":[{"name":"elsewhere","size":9},{"name":"bash_5-1.diff.gz","size":5}],"bb":[{"name":"bash_5-1.dsc","size":5}]}}`
	for name, tc := range map[string]struct {
		served map[string][]string
		want   []string // in the error; none: all is there
		once   string   // asked for once
	}{
		"at the mirror":                         {map[string][]string{"/mirror/./" + dsc.Name: {"hello"}, "/mirror/./" + diff.Name: {"hello"}}, nil, "/mirror/./" + diff.Name},
		"at the archive":                        {map[string][]string{list: {listed}, "/archive/file/aa": {"hello"}, "/archive/file/bb": {"hello"}}, nil, list},
		"at the archive when it is asked again": {map[string][]string{"/mirror/./" + dsc.Name: {"hello"}, list: {"503", "{", listed}, "/archive/file/aa": {"503", "hel", "hello"}}, nil, ""},
		"other bytes at the mirror":             {map[string][]string{"/mirror/./" + dsc.Name: {"hello"}, "/mirror/./" + diff.Name: {"hellp"}, list: {listed}, "/archive/file/aa": {"hello"}}, nil, ""},
		"other bytes at the archive": {map[string][]string{"/mirror/./" + dsc.Name: {"hello"}, list: {listed}, "/archive/file/aa": {"hellp"}},
			[]string{"serve 1 files", diff.Name + " of bash=5-1, SHA-256 " + hello + ": it came with the SHA-256 "}, ""},
		"too long at the archive": {map[string][]string{"/mirror/./" + dsc.Name: {"hello"}, list: {listed}, "/archive/file/aa": {"hello world"}},
			[]string{"serve 1 files", diff.Name, "it has not the 5 bytes that are listed"}, ""},
		"another size in the list": {map[string][]string{"/mirror/./" + dsc.Name: {"hello"}, list: {strings.ReplaceAll(listed, "5}", "6}")}, "/archive/file/aa": {"hello"}},
			[]string{"serve 1 files", diff.Name}, ""},
		"missing at both": {map[string][]string{list: {strings.Replace(listed, "bash_5-1.diff.gz", "other", 1)}},
			[]string{"serve 2 files", dsc.Name + " of bash=5-1", "/archive/file/bb: 404", diff.Name + " of bash=5-1", "does not list it"}, "/archive/file/bb"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mu.Lock()
			served = maps.Clone(mirror)
			maps.Copy(served, tc.served)
			clear(asked)
			served["/mirror/./"+tar.Name] = []string{"hello"}
			served["/archive/mr/package/glibc/2-1/srcfiles"] = []string{`{"fileinfo":{"cc":[{"name":"glibc_2-1.dsc","size":5}]}}`}
			served["/archive/file/cc"] = []string{"hello"}
			mu.Unlock()
			a, err := NewApt("amd64", filepath.Join(dir, "apt"), "deb-src [trusted=yes] "+server.URL+"/mirror ./\n", "renew it")
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("http_proxy", "")
			a.archive = archive{address: server.URL + "/archive", pause: time.Millisecond}
			cache, all := filepath.Join(dir, "cache"), []SourceFile{dsc, tar, diff, other}
			err = a.FetchSources(all, cache)
			lost := 0
			for _, f := range all {
				switch raw, err := os.ReadFile(filepath.Join(cache, f.Name)); {
				case errors.Is(err, fs.ErrNotExist):
					lost++
				case err != nil || string(raw) != "hello":
					t.Errorf("%s: %q, %v", f.Name, raw, err)
				}
			}
			if len(tc.want) == 0 && (err != nil || lost > 0) {
				t.Errorf("%d are missing: %v", lost, err)
			}
			for _, want := range append(slices.Clone(tc.want), fmt.Sprintf("serve %d files", lost), "put these into "+cache, "renew it") {
				if len(tc.want) > 0 && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("%v, want %q", err, want)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if tc.once != "" && asked[tc.once] != 1 {
				t.Errorf("%s was asked for %d times", tc.once, asked[tc.once])
			}
			if left, err := filepath.Glob(cache + "/.fetch-*"); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// An archive that does not answer is not waited for again with each file.
func TestAnArchiveThatDoesNotAnswerIsAskedNoMore(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1); panic(http.ErrAbortHandler) }))
	defer server.Close()
	a := archive{address: server.URL, pause: time.Millisecond}
	for range 3 {
		if err := a.source(SourceFile{SourceVersion{"bash", "5-1"}, "bash_5-1.dsc", hello}, filepath.Join(t.TempDir(), "f")); err == nil {
			t.Error("it came")
		}
	}
	if n := asked.Load(); n != attempts {
		t.Errorf("it was asked %d times", n)
	}
}
