package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// NOTICE names what go.mod and debs.list have now, and all of it has a text.
func TestNoticeIsUpToDate(t *testing.T) {
	t.Chdir("../../..")
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	tags := regexp.MustCompile(`(?m)^TAGS\s*:= (.*)$`).FindSubmatch(makefile)
	if tags == nil {
		t.Fatal("the Makefile has no TAGS")
	}
	parts, err := modules(string(tags[1]))
	if err != nil {
		t.Fatal(err)
	}
	debs, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, table(parts, debs)) {
		t.Error("NOTICE is not what the module graphs say; write it anew with: make notice")
	}
	for _, want := range []string{"k3s-io/kubernetes ", "coredns/coredns ", "opencontainers/runc ", "containernetworking/plugins ", "iptables 1", "golang.zx2c4.com/wireguard "} {
		if !strings.Contains(string(have), want) {
			t.Errorf("NOTICE lacks %s", want)
		}
	}
	var out bytes.Buffer
	if err := appendTexts(&out, parts, ""); err != nil {
		t.Fatal(err)
	}
	for _, m := range parts {
		if !strings.Contains(out.String(), "\n"+m.id()+" (") {
			t.Errorf("%s has no text", m.id())
		}
	}
	// Code of others inside a module has its own text, below the module's root.
	for _, want := range []string{"\nk8s.io/utils v.* \\(internal/third_party/forked/golang/LICENSE\\)\n", "\ngithub.com/klauspost/compress v.* \\(zstd/internal/xxhash/LICENSE.txt\\)\n"} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("no text is of %q", want)
		}
	}
}

// Each licence file of the folders of the linked packages, up to the module's root, is known and allowed, or the build
// ends with the names of module and file.
func TestUnknownLicenceIsAnError(t *testing.T) {
	const mit = "Permission is hereby granted, free of charge, to any person obtaining a copy"
	for _, c := range []struct{ file, text, want string }{
		{"LICENSE", "You may not use this.", "is no licence that is known"},
		{"LICENSE.extra", "GNU GENERAL PUBLIC LICENSE\n Version 2, June 1991", "is under GPL, which is not allowed"},
		{"a/COPYING", "under the terms of the GNU Affero General Public License as published", "is under AGPL, which is not allowed"},
		{"a/b/LICENSE", "Business Source License 1.1", "is under BUSL-1.1, which is not allowed"},
		{"a/b/LICENSE", "You may not use this.", "is no licence that is known"},
		{"a/b/LICENSE", "Redistribution and use in source and binary forms, with", ""},
		{"a/b/license.go", "package b", ""},
		{"other/LICENSE", "You may not use this.", ""}, // no package of it is linked
		{"a/NOTICE", "Written by us.", ""},
	} {
		dir := t.TempDir()
		for _, d := range []string{"a/b", "other"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range map[string]string{"LICENSE": mit, c.file: c.text} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m := module{path: "example.org/x", version: "v1", dir: dir}
		err := m.add(filepath.Join(dir, "a/b"))
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.file, err)
			}
			read := slices.Contains(m.files, filepath.Join(dir, c.file))
			if want := c.file != "other/LICENSE" && c.file != "a/b/license.go"; read != want {
				t.Errorf("%s is read: %v, want %v", c.file, read, want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "example.org/x v1: "+filepath.Join(dir, c.file)+" "+c.want) {
			t.Errorf("%s: %v, want %q with module and file", c.file, err, c.want)
		}
	}
	dir := t.TempDir()
	m := module{path: "example.org/x", version: "v1", dir: dir}
	if err := errors.Join(m.add(dir), m.settle()); err == nil || !strings.Contains(err.Error(), "example.org/x v1: no licence in ") {
		t.Errorf("a module without a licence: %v", err)
	}
	if err := m.add(t.TempDir()); err == nil {
		t.Error("a package outside of its module was taken")
	}
	// The MPL names the licences that it is compatible with.
	if got := kinds("Mozilla Public License Version 2.0 ... means either the GNU General Public License, Version 2.0, the GNU Lesser General Public License, Version 2.1"); !slices.Equal(got, []string{"MPL-2.0"}) {
		t.Errorf("the MPL: %v", got)
	}
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                                     "Apache-2.0",
		"Permission is hereby granted, free\nof charge, to any person obtaining a copy of": "MIT",
		"Redistribution and use in source and binary forms, with":                          "BSD-2-Clause",
		"Redistribution and use in source and binary forms ... Neither the name of the":    "BSD-3-Clause",
		"Mozilla Public License Version 2.0":                                               "MPL-2.0",
	} {
		if got := kinds(text); !slices.Equal(got, []string{want}) {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
}

// The runc of the bundle is listed from its own module.
func TestRuncIsOfItsOwnModule(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/opencontainers/runc")
	cmd.Dir = "../../bundle/runc"
	version, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	notice, err := os.ReadFile("../../../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/opencontainers/runc " + strings.TrimSpace(string(version)); !strings.Contains(string(notice), want) {
		t.Errorf("NOTICE lacks %q", want)
	}
}
