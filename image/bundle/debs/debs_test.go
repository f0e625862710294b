package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"

func TestListIsReadAsItIsWritten(t *testing.T) {
	all := []deb{{"amd64", "iptables", "1.8.9-2", zeros}, {"armhf", "libc6", "2.36-9+deb12u14", zeros}}
	got, err := parse(format(all))
	if err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%v, %v; want %v", got, err, all)
	}
}

func TestListSaysWhichLineIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"# x\n\namd64 iptables 1.8.9-2\n":         "line 3 has 3 words",
		"amd64 iptables 1.8.9-2 abc":              "line 1: \"abc\" is not a SHA-256",
		"a b c " + zeros + "\na b d " + zeros:     "line 2: b is there twice for a",
		"a b c " + zeros[1:] + "g":                "is not a SHA-256",
		"a b c " + zeros + "\nb b c " + zeros[2:]: "line 2",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Every architecture has every package, so that a build finds out at once.
func TestListIsComplete(t *testing.T) {
	for goarch, d := range debian {
		some, err := pinned("../debs.list", d.arch)
		if err != nil || len(some) != len(wanted) {
			t.Errorf("%s: %v, %v", goarch, some, err)
		}
	}
	if _, err := pinned("../debs.list", "riscv64"); err == nil || !strings.Contains(err.Error(), "make bundle-pins") {
		t.Errorf("an architecture that is not there: %v", err)
	}
}

func TestRecord(t *testing.T) {
	text := []byte("Package: libc6\nVersion: 2.36-9\nDescription: x\n SHA256: not this\nSHA256: " + zeros + "\n\nPackage: libc6\nVersion: 1\n")
	if d, err := record(text, "armhf", "libc6"); err != nil || d != (deb{"armhf", "libc6", "2.36-9", zeros}) {
		t.Errorf("%v, %v", d, err)
	}
	if _, err := record([]byte("Package: libc6\n"), "armhf", "libc6"); err == nil {
		t.Error("a record without a version was taken")
	}
}

// What is in the cache is used without a network if its hash is right, and
// refused if not.
func TestCacheIsChecked(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir) // no apt-get
	a, err := newApt("amd64", filepath.Join(dir, "apt"))
	if err != nil {
		t.Fatal(err)
	}
	d := deb{"amd64", "iptables", "1:1.8", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"} // of hello
	file := filepath.Join(dir, "iptables_1%3a1.8_amd64.deb")
	if _, err := a.fetch(d, dir); err == nil || !strings.Contains(err.Error(), "build on Debian, or put iptables_1%3a1.8_amd64.deb") {
		t.Errorf("without apt-get: %v", err)
	}
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := a.fetch(d, dir); err != nil || got != file {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.WriteFile(file, []byte("hellp"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.fetch(d, dir); err == nil || !strings.Contains(err.Error(), "pinned is 2cf24dba") {
		t.Errorf("a changed package: %v", err)
	}
}

func TestTreeFollowsLinks(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeReg, Name: "./usr/lib/x/libc.so.6", Size: 1},
		{Typeflag: tar.TypeSymlink, Name: "./lib64/ld.so", Linkname: "/lib/x/libc.so.6"},
		{Typeflag: tar.TypeSymlink, Name: "./usr/lib/x/libc.so", Linkname: "libc.so.6"},
		{Typeflag: tar.TypeSymlink, Name: "./a", Linkname: "b"},
		{Typeflag: tar.TypeSymlink, Name: "./b", Linkname: "a"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Write([]byte("x")[:h.Size])
	}
	w.Close()
	files := tree{}
	if err := files.add(&archive); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"lib/x/libc.so": "x", "lib64/ld.so": "x", "usr/lib/x/libc.so.6": "x", "a": "", "nowhere": ""} {
		if got, err := files.file(name); string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// What was taken for each architecture built so far needs nothing that is not
// there, for that architecture.
func TestTakenIsWhole(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM}
	looked := 0
	for goarch, machine := range machines {
		in := "../../../_build/bundle/linux_" + goarch
		if _, err := os.Stat(in + "/debs.stamp"); err != nil {
			continue
		}
		looked++
		lib := in + "/netfilter/lib"
		entries, err := os.ReadDir(lib)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{"libm.so.6": true}
		for _, e := range entries {
			names[e.Name()] = true
		}
		for _, must := range []string{"ld.so", "libc.so.6", "xtables-nft-multi", "xtables-legacy-multi", "libxt_MASQUERADE.so", "libxt_statistic.so", "libxt_comment.so", "libip6t_REJECT.so"} {
			if !names[must] {
				t.Errorf("%s: %s is missing", goarch, must)
			}
		}
		loader := ""
		for _, e := range entries {
			if e.Type() == fs.ModeSymlink {
				if to, _ := os.Readlink(path.Join(lib, e.Name())); !names[to] {
					t.Errorf("%s: %s is a link to %s, which is not there", goarch, e.Name(), to)
				}
				continue
			}
			f, err := elf.Open(path.Join(lib, e.Name()))
			if err != nil {
				t.Fatalf("%s: %v", e.Name(), err)
			}
			defer f.Close()
			if f.Machine != machine {
				t.Errorf("%s: %s is for %v", goarch, e.Name(), f.Machine)
			}
			needs, err := f.ImportedLibraries()
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range needs {
				if strings.HasPrefix(n, "ld-linux") {
					loader = n
				} else if !names[n] {
					t.Errorf("%s: %s needs %s", goarch, e.Name(), n)
				}
			}
		}
		if soname(t, lib+"/ld.so") != loader && loader != "" {
			t.Errorf("%s: ld.so is %s, asked for is %s", goarch, soname(t, lib+"/ld.so"), loader)
		}
	}
	if looked == 0 {
		t.Skip("needs what the bundle is made of: make bundle")
	}
}

func soname(t *testing.T, file string) string {
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 {
		t.Fatalf("%s: %v, %v", file, names, err)
	}
	return names[0]
}
