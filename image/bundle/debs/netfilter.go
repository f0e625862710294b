package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/debian"
)

// ours are libraries that do not come from a package: only one function of libm (0.9 MB) is called, and
// image/bundle/libm provides it.
var ours = map[string]string{"libm.so.6": "lround"}

// left are extensions that are left out because of their dependencies. All others are included: iptables-save fails on
// any rule whose extension is missing, whichever program added the rule.
var left = []string{
	"libxt_RATEEST.so",   // logarithms
	"libxt_connlabel.so", // libnetfilter-conntrack
}

// netfilter writes the programs, their extensions and all libraries they need to dir/lib, licences to dir/licences and
// the packages' names to dir/packages.
func netfilter(files tree, packages []debian.Deb, triplet, dir string) error {
	lib := map[string]node{}
	for _, name := range []string{"xtables-nft-multi", "xtables-legacy-multi"} {
		content, err := files.file("usr/sbin/" + name)
		if err != nil {
			return err
		}
		lib[name] = node{content: content}
	}
	for name, n := range files {
		base := path.Base(name)
		if path.Base(path.Dir(name)) == "xtables" && !slices.Contains(left, base) &&
			(strings.HasPrefix(base, "libxt_") || strings.HasPrefix(base, "libipt_") || strings.HasPrefix(base, "libip6t_")) {
			lib[base] = n
		}
	}
	if err := libraries(files, triplet, lib); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, n := range lib {
		if err := write(filepath.Join(dir, "lib", name), n, 0o755); err != nil {
			return err
		}
	}
	return licences(files, packages, dir)
}

// libraries adds the libraries that the files of lib need, and the loader as ld.so.
func libraries(files tree, triplet string, lib map[string]node) error {
	loader, err := interpreter(lib["xtables-nft-multi"].content)
	if err != nil {
		return err
	}
	content, err := files.file(strings.TrimPrefix(loader, "/"))
	if err != nil {
		return err
	}
	lib["ld.so"] = node{content: content}
	for todo := slices.Collect(maps.Keys(lib)); len(todo) > 0; todo = todo[1:] {
		if lib[todo[0]].link != "" {
			continue
		}
		needs, err := needed(lib[todo[0]].content)
		if err != nil {
			return fmt.Errorf("%s: %w", todo[0], err)
		}
		for _, name := range needs {
			// A running loader counts as loaded under its own name.
			if _, have := lib[name]; have || ours[name] != "" || name == path.Base(loader) {
				continue
			}
			content, err := files.file("lib/" + triplet + "/" + name)
			if err != nil {
				return fmt.Errorf("%s needs it: %w", todo[0], err)
			}
			lib[name] = node{content: content}
			todo = append(todo, name)
		}
	}
	return nil
}

func interpreter(program []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return "", err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			raw := make([]byte, p.Filesz)
			_, err := p.ReadAt(raw, 0)
			return strings.TrimRight(string(raw), "\x00"), err
		}
	}
	return "", fmt.Errorf("the program names no loader")
}

// needed returns the libraries that a file needs. A symbol that it uses from one of ours has to be in ours.
func needed(content []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return nil, err
	}
	for _, s := range symbols {
		if has, ok := ours[s.Library]; ok && s.Name != has {
			return nil, fmt.Errorf("it calls %s of %s, ours has %s only", s.Name, s.Library, has)
		}
	}
	return f.ImportedLibraries()
}

// licences writes the copyright files of the packages, that of libseccomp for runc too, and the list of packages whose
// files are in the folder.
func licences(files tree, packages []debian.Deb, dir string) error {
	var names bytes.Buffer
	for _, d := range packages {
		if d.Name != "libseccomp-dev" { // linked into runc
			fmt.Fprintf(&names, "%s %s\n", d.Name, d.Version)
		}
		text, err := files.file("usr/share/doc/" + d.Name + "/copyright")
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, "licences", d.Name), node{content: text}, 0o644); err != nil {
			return err
		}
	}
	return write(filepath.Join(dir, "packages"), node{content: names.Bytes()}, 0o644)
}

// sysroot writes the libraries that runc is linked with, where pkg-config finds them.
func sysroot(files tree, triplet, dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, n := range files {
		static := name == "usr/lib/"+triplet+"/libseccomp.a" || name == "usr/lib/"+triplet+"/pkgconfig/libseccomp.pc"
		if header := strings.HasPrefix(name, "usr/include/") && strings.HasPrefix(path.Base(name), "seccomp"); header || static {
			if err := write(filepath.Join(dir, name), n, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func write(path string, n node, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if n.link != "" {
		return os.Symlink(n.link, path)
	}
	if err := os.WriteFile(path, n.content, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
