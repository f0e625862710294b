// Command collect writes NOTICE, the list of every Go module and program in a released binary with its licence, and the
// same list with all licence texts, compressed, for `rivulet licenses`. It reads the module graphs of this repository
// and of image/bundle/runc, the module cache and image/bundle/debs.list, and alone writes the files that -notice and
// -texts name. Failure: a licence file that it cannot identify, or that is not of the allowed licences, is an error, for a
// person to check.
//
//	go run ./image/licenses/collect -tags "..." -notice NOTICE
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/sources"
)

func main() {
	tags := flag.String("tags", "", "build tags of the release")
	notice := flag.String("notice", "", "file for the list")
	texts := flag.String("texts", "", "file for the list and the texts, zstd")
	debian := flag.String("debian", "", "folder with the copyright files of the Debian packages, for -texts")
	flag.Parse()
	if err := run(*tags, *notice, *texts, *debian); err != nil {
		fmt.Fprintln(os.Stderr, "collect:", err)
		os.Exit(1)
	}
}

func run(tags, notice, texts, debian string) error {
	parts, err := modules(tags)
	if err != nil {
		return err
	}
	packages, err := packages()
	if err != nil {
		return err
	}
	list := table(parts, packages)
	if notice != "" {
		if err := os.WriteFile(notice, list, 0o644); err != nil {
			return err
		}
	}
	if texts == "" {
		return nil
	}
	all := bytes.NewBuffer(list)
	if err := appendTexts(all, parts, debian); err != nil {
		return err
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	return os.WriteFile(texts, w.EncodeAll(all.Bytes(), nil), 0o644)
}

// table returns the content of NOTICE.
func table(parts []module, packages []string) []byte {
	var out bytes.Buffer
	out.WriteString(`Rivulet
Licensed under the Apache License, Version 2.0: see LICENSE.

Written by make notice; do not edit. The binary contains what follows. The text of each licence: rivulet licenses

The sources of all of it lie beside it in the release: rivulet-VERSION-sources.tar has Debian's source packages, by the
exact versions that the file SOURCES names; rivulet-VERSION-src.tar.zst has Rivulet, each Go module, and how they are built.

Programs of the bundle under the GPL or LGPL, from Debian 12. rivulet and runc are linked with the static GNU C library too, LGPL-2.1-or-later, of the
building machine's package libc6-dev.

`)
	for _, p := range packages {
		fmt.Fprintf(&out, "  %s\n", p)
	}
	out.WriteString("\nGo modules. runc, containerd, containerd-shim-runc-v2, the CNI plugins, Kubernetes, k3s and CoreDNS are among them.\n\n")
	for _, m := range parts {
		fmt.Fprintf(&out, "  %s  %s\n", m.id(), strings.Join(m.licences, ", "))
	}
	return out.Bytes()
}

// appendTexts adds each text once, below the names of all its modules.
func appendTexts(out *bytes.Buffer, parts []module, debian string) error {
	type text struct {
		of      []string
		content string
	}
	var all []*text
	known := map[string]*text{}
	add := func(of, content string) {
		key := strings.Join(strings.Fields(content), " ")
		t := known[key]
		if t == nil {
			t = &text{content: content}
			known[key] = t
			all = append(all, t)
		}
		t.of = append(t.of, of)
	}
	for _, m := range parts {
		for _, f := range m.files {
			content, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(m.dir, f)
			if err != nil {
				return err
			}
			add(m.id()+" ("+name+")", string(content))
		}
	}
	if debian != "" {
		files, err := filepath.Glob(filepath.Join(debian, "*"))
		if err != nil || len(files) == 0 {
			return errors.Join(err, fmt.Errorf("%s has no copyright files; make bundle", debian))
		}
		for _, f := range files {
			content, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			add("Debian package "+filepath.Base(f), string(content))
		}
		for _, name := range []string{"GPL-2", "LGPL-2.1"} { // the packages' own files only refer to them
			content, err := os.ReadFile(filepath.Join(common, name))
			if err != nil {
				return fmt.Errorf("%w; apt-get install base-files", err)
			}
			add(name, string(content))
		}
	}
	for _, t := range all {
		fmt.Fprintf(out, "\n%s\n", strings.Repeat("-", 100))
		for _, of := range slices.Compact(t.of) {
			fmt.Fprintln(out, of)
		}
		fmt.Fprintf(out, "\n%s\n", strings.TrimSpace(t.content))
	}
	return nil
}

// common is Debian's folder of texts that many packages share.
const common = "/usr/share/common-licenses"

// gpl are the licences of the pinned Debian packages.
var gpl = map[string]string{
	"iptables": "GPL-2.0-or-later", "libip4tc2": "GPL-2.0-or-later", "libip6tc2": "GPL-2.0-or-later", "libxtables12": "GPL-2.0-or-later",
	"libnftnl11": "GPL-2.0-or-later", "libmnl0": "LGPL-2.1-or-later", "libc6": "LGPL-2.1-or-later", "libseccomp-dev": "LGPL-2.1-only (linked into runc)",
}

// packages returns the lines of NOTICE for image/bundle/debs.list.
func packages() ([]string, error) {
	debs, err := sources.Bundle(".", "")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range debs {
		licence, ok := gpl[d.Name]
		if !ok {
			return nil, fmt.Errorf("%s has no licence in image/licenses/collect; read its copyright file and add it", d.Name)
		}
		out = append(out, d.Name+" "+d.Version+"  "+licence)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
