package main

import (
	"io/fs"
	"os"
	"path/filepath"

	"rivulet/image/bundle"
)

// backends are the two interfaces to the kernel's packet filter. Each has a folder of programs; PATH gets one of them.
var backends = []string{"legacy", "nft"}

// applets are the names under which the programs are called.
var applets = []string{
	"ip6tables", "ip6tables-restore", "ip6tables-save",
	"iptables", "iptables-restore", "iptables-save",
}

// netfilter collects the output of `image/bundle/debs` in in/netfilter, Rivulet's libm, and the launcher in each
// backend's folder.
func netfilter(in string) (all []entry, err error) {
	root := filepath.Join(in, "netfilter")
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(in, path)
		if err != nil {
			return err
		}
		if e.Type() == fs.ModeSymlink {
			to, err := os.Readlink(path)
			all = append(all, link(filepath.ToSlash(rel), to))
			return err
		}
		mode := os.FileMode(0o644)
		if filepath.Base(filepath.Dir(path)) == "lib" {
			mode = 0o755
		}
		content, err := read(path)
		all = append(all, file(filepath.ToSlash(rel), mode, content))
		return err
	})
	if err != nil {
		return nil, err
	}
	libm, err := read(filepath.Join(in, "libm.so.6"))
	if err != nil {
		return nil, err
	}
	launcher, err := read(filepath.Join(in, "xtables"))
	if err != nil {
		return nil, err
	}
	all = append(all, file("netfilter/lib/libm.so.6", 0o755, libm))
	for _, b := range backends {
		all = append(all, file("netfilter/"+b+"/run", 0o755, launcher))
		for _, a := range applets {
			all = append(all, link("netfilter/"+b+"/"+a, "run"))
		}
	}
	return all, nil
}

func link(name, to string) entry {
	return entry{File: bundle.File{Name: name, Mode: os.ModeSymlink | 0o777, Link: to}}
}
