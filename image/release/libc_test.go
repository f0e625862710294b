package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// thisArch names this machine's architecture as make release does.
func thisArch() string {
	if runtime.GOARCH == "arm" {
		return "armv7"
	}
	return runtime.GOARCH
}

// compiler puts a compiler into a folder of the PATH that links the C library in a file.
func compiler(t *testing.T, dir, arch, library string) {
	t.Helper()
	script := "#!/bin/sh\n[ \"$*\" = -print-file-name=libc.a ] && echo " + library + "\n"
	if err := os.WriteFile(filepath.Join(dir, compilers[arch]), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A release is made with the C library that was tested with it, for each architecture; early what is not installed yet is
// left for later, and later nothing is.
func TestTheCLibraryIsTheLockedOne(t *testing.T) {
	tools, libraries := t.TempDir(), t.TempDir()
	t.Setenv("PATH", tools)
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	lock := "# list\namd64 " + sum("glibc") + " libc6-dev 2.36\narm64 " + sum("glibc for arm64") + " libc6-dev-arm64-cross 2.36-8\n"
	compiler(t, tools, "amd64", write(t, libraries, "amd64.a", []byte("glibc")))
	compiler(t, tools, "arm64", write(t, libraries, "arm64.a", []byte("glibc for arm64")))
	for name, tc := range map[string]struct {
		change      func()
		arches      []string
		lock        string
		early, late string // what is said before the build, and after
	}{
		"the same":        {func() {}, []string{"amd64", "arm64"}, lock, "", ""},
		"another one":     {func() {}, []string{"amd64", "arm64"}, strings.Replace(lock, sum("glibc"), sum("older"), 1), "of libc6-dev 2.36; install that version", "of libc6-dev 2.36; install that version"},
		"another for arm": {func() {}, []string{"amd64", "arm64"}, strings.Replace(lock, sum("glibc for arm64"), sum("older"), 1), "of libc6-dev-arm64-cross 2.36-8; install", "of libc6-dev-arm64-cross 2.36-8; install"},
		"no line":         {func() {}, []string{"arm64"}, "# list\n", "has no C library for arm64; make libc-lock", "has no C library for arm64; make libc-lock"},
		"a line cut":      {func() {}, []string{"amd64"}, "amd64 " + sum("glibc") + "\n", "has no C library for amd64", "has no C library for amd64"},
		"no lock":         {func() {}, []string{"amd64"}, "", "no such file or directory; make libc-lock", "no such file or directory; make libc-lock"},
		"no compiler":     {func() {}, []string{"armv7"}, lock + "armv7 " + sum("x") + " libc6-dev-armhf-cross 2\n", "", "; make deps ARCH=armv7"},
		"no library": {func() { compiler(t, tools, "armv7", "libc.a") }, []string{"armv7"}, lock + "armv7 " + sum("x") + " libc6-dev-armhf-cross 2\n",
			"; make deps ARCH=armv7", "; make deps ARCH=armv7"},
	} {
		t.Run(name, func(t *testing.T) {
			o := asked
			o.tree = t.TempDir()
			if err := os.MkdirAll(filepath.Join(o.tree, filepath.Dir(libcLock)), 0o755); err != nil {
				t.Fatal(err)
			}
			if tc.lock != "" {
				write(t, o.tree, libcLock, []byte(tc.lock))
			}
			if err := os.RemoveAll(filepath.Join(tools, compilers["armv7"])); err != nil {
				t.Fatal(err)
			}
			tc.change()
			for want, err := range map[string]error{"before the build: " + tc.early: o.checkLibc(t.Context(), tc.arches, true), "after it: " + tc.late: o.checkLibc(t.Context(), tc.arches, false)} {
				_, want, _ = strings.Cut(want, ": ")
				if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), orDraft)) {
					t.Errorf("%v, want %q and a cure", err, want)
				}
			}
			o.draft = true
			if err := o.checkLibc(t.Context(), tc.arches, false); err != nil {
				t.Errorf("a draft: %v", err)
			}
		})
	}
}

// The lock of this tree has all architectures, and is written as it is read.
func TestTheLockOfTheCLibrary(t *testing.T) {
	text, err := os.ReadFile("../../" + libcLock)
	if err != nil {
		t.Fatal(err)
	}
	for arch := range machines {
		if !strings.Contains(string(text), "\n"+arch+" ") {
			t.Errorf("it lacks %s: %s", arch, text)
		}
	}
	arch := thisArch()
	for _, tool := range []string{compilers[arch], "dpkg-query"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool + ": make deps")
		}
	}
	o := asked
	o.tree = t.TempDir()
	if err := os.MkdirAll(filepath.Join(o.tree, filepath.Dir(libcLock)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := o.writeLibc(t.Context(), []string{arch}); err != nil {
		t.Fatal(err)
	}
	if err := o.checkLibc(t.Context(), []string{arch}, false); err != nil {
		t.Error(err)
	}
}
