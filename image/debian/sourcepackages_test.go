package debian

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestArchivesOfSources(t *testing.T) {
	if got, want := WithSources("deb [x] a b c\ndeb d e\n"), "deb [x] a b c\ndeb d e\ndeb-src [x] a b c\ndeb-src d e\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// stand makes an apt that offers two packages and their source.
func stand(t *testing.T) (*Apt, string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"apt-get": `[ "$2" != source ] || [ "$4 $5" != "--only-source bash=5-1" ] || { printf hello >bash_5-1.dsc; printf hello >bash_5.tar.xz; }`,
		"apt-cache": `[ $1 = showsrc ] || { printf 'Package: bash\nVersion: 5-1+b1\nSource: bash (5-1)\nSHA256: ` + zeros + `\nBuilt-Using: glibc (= 2)\nStatic-Built-Using: glibc (= 2)\n\nPackage: bash\nVersion: 5-1\nSource: fork\nSHA256: 1\n'; exit; }
printf 'Package: bash\nVersion: 5-0\nChecksums-Sha256:\n 11 1 bash_5-0.dsc\n\nPackage: bash\nVersion: 5-1\nChecksums-Sha256:\n ` + hello + ` 5 bash_5-1.dsc\n ` + hello + ` 5 bash_5.tar.xz\n'`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	a, err := NewApt("amd64", filepath.Join(dir, "apt"), "", "renew it")
	if err != nil {
		t.Fatal(err)
	}
	return a, dir
}

const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"

// The package with the pinned hash counts, the source with the version, and only files with the pinned hashes are kept.
func TestSourcesAreFetchedByHash(t *testing.T) {
	a, dir := stand(t)
	bash, own := Deb{"amd64", "bash", "5-1+b1", zeros}, SourceVersion{"bash", "5-1"}
	if got, err := a.SourcesOf([]Deb{bash}); err != nil || !reflect.DeepEqual(got, map[Deb][]SourceVersion{bash: {own, {"glibc", "2"}}}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := a.SourcesOf([]Deb{{"amd64", "bash", "5-1", hello}}); err == nil || !strings.Contains(err.Error(), "renew it") {
		t.Errorf("another package of the same version: %v", err)
	}
	files, err := a.SourceFiles([]SourceVersion{own})
	if want := []SourceFile{{own, "bash_5-1.dsc", hello}, {own, "bash_5.tar.xz", hello}}; err != nil || !reflect.DeepEqual(files, want) {
		t.Errorf("%v, %v, want %v", files, err, want)
	}
	if _, err := a.SourceFiles([]SourceVersion{{"bash", "5-2"}}); err == nil || !strings.Contains(err.Error(), "renew it") {
		t.Errorf("a version that is not there: %v", err)
	}
	cache := filepath.Join(dir, "cache")
	a.archive = archive{address: "http://127.0.0.1:1", pause: time.Millisecond} // nobody
	lost := SourceFile{own, "bash_5-1.diff", hello}
	if err := a.FetchSources(append(files, lost), cache); err == nil || !strings.Contains(err.Error(), "1 files of sources:\n  bash_5-1.diff of bash=5-1") || !strings.Contains(err.Error(), "renew it") || !strings.Contains(err.Error(), cache) {
		t.Errorf("a file that the archive does not have: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := a.FetchSources(files, cache); err != nil {
		t.Errorf("what is in the cache: %v", err)
	}
	if err := os.WriteFile(filepath.Join(cache, "bash_5.tar.xz"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.FetchSources(files, cache); err == nil || !strings.Contains(err.Error(), "pinned is "+hello) {
		t.Errorf("another content: %v", err)
	}
}
