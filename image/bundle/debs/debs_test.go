package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// Every architecture has every package, so that a build finds out at once.
func TestListIsComplete(t *testing.T) {
	for goarch, d := range targets {
		some, err := pinned("../../..", d.arch)
		if err != nil || len(some) != len(wanted) {
			t.Errorf("%s: %v, %v", goarch, some, err)
		}
	}
	if _, err := pinned("../../..", "riscv64"); err == nil || !strings.Contains(err.Error(), "make bundle-pins") {
		t.Errorf("an architecture that is not there: %v", err)
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

// The copyright file of each package is in the bundle, also of the library that is linked into runc.
func TestEachPackageHasItsCopyright(t *testing.T) {
	all, err := pinned("../../..", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	files, dir := tree{}, t.TempDir()
	for _, d := range all {
		files["usr/share/doc/"+d.Name+"/copyright"] = node{content: []byte("terms of " + d.Name)}
	}
	if err := licences(files, all, dir); err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if text, err := os.ReadFile(path.Join(dir, "licences", d.Name)); err != nil || string(text) != "terms of "+d.Name {
			t.Errorf("%s: %q, %v", d.Name, text, err)
		}
	}
	list, err := os.ReadFile(path.Join(dir, "packages"))
	if err != nil || strings.Count(string(list), "\n") != len(all)-1 || strings.Contains(string(list), "libseccomp") {
		t.Errorf("packages: %q, %v", list, err)
	}
	delete(files, "usr/share/doc/libseccomp-dev/copyright")
	if err := licences(files, all, dir); err == nil {
		t.Error("a package without a copyright file was taken")
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
