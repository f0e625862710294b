package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// module is a Go module with packages that are linked into a released program.
type module struct {
	path, version string
	files         []string // of licences and notices
	licences      []string // SPDX identifiers
}

func (m module) id() string { return strings.TrimSpace(m.path + " " + m.version) }

// graphs are the programs of a release, by the folder of their module.
var graphs = []struct {
	dir      string
	tags     string // in addition to those of the release
	programs []string
}{
	{".", "", []string{"./cmd/rivulet", "./cmd/rivulet-tunnel", "./cmd/rivulet-cni", "./cmd/rivulet-gateway",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "github.com/containernetworking/plugins/plugins/main/bridge"}},
	{"image/bundle/runc", "seccomp", []string{"github.com/opencontainers/runc"}},
}

// modules returns those of all programs and architectures, sorted.
func modules(tags string) ([]module, error) {
	found := map[string]module{}
	for _, g := range graphs {
		for _, arch := range []string{"amd64", "arm64", "arm"} {
			cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module", "-tags", tags + " " + g.tags}, g.programs...)...)
			cmd.Dir = g.dir
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS=linux", "GOARCH="+arch)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				return nil, fmt.Errorf("go list in %s: %w", g.dir, err)
			}
			if err := read(strings.NewReader(string(out)), found); err != nil {
				return nil, err
			}
		}
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	m, err := describe("Go standard library", "", strings.TrimSpace(string(goroot)))
	if err != nil {
		return nil, err
	}
	out := []module{m}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[key])
	}
	return out, nil
}

// read adds the modules of `go list -json`.
func read(r io.Reader, found map[string]module) error {
	type listed struct {
		Path, Version, Dir string
		Main               bool
		Replace            *listed
	}
	dec := json.NewDecoder(r)
	for {
		var p struct{ Module *listed }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		m := p.Module
		if m == nil || m.Main {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if _, ok := found[m.Path+" "+m.Version]; ok {
			continue
		}
		d, err := describe(m.Path, m.Version, m.Dir)
		if err != nil {
			return err
		}
		found[d.id()] = d
	}
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|unlicense)`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents|copyright)`)
)

// describe reads a module's licences.
func describe(path, version, dir string) (module, error) {
	m := module{path: path, version: version}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return m, fmt.Errorf("%s: %w", m.id(), err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		is := licenceFile.MatchString(e.Name())
		if e.IsDir() || !is && !noticeFile.MatchString(e.Name()) {
			continue
		}
		m.files = append(m.files, name)
		if !is {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return m, err
		}
		m.licences = append(m.licences, kinds(string(text))...)
	}
	slices.Sort(m.licences)
	m.licences = slices.Compact(m.licences)
	if len(m.licences) == 0 {
		return m, fmt.Errorf("%s: no licence that is known in %s; read it, and add it to image/licenses/collect", m.id(), dir)
	}
	return m, nil
}

// phrases identify licences: text without line breaks, lower case.
var phrases = []struct{ id, phrase string }{
	{"Apache-2.0", "apache license version 2.0"},
	{"Apache-2.0", "licensed under the apache license"},
	{"Apache-2.0", "apache.org/licenses/license-2.0"},
	{"MPL-2.0", "mozilla public license"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software"},
	{"ISC", "permission to use, copy, modify, and distribute this software"},
	{"Unlicense", "this is free and unencumbered software released into the public domain"},
	{"CC0-1.0", "cc0 1.0 universal"},
	{"CC-BY-4.0", "creative commons attribution 4.0"},
	{"CC-BY-SA-4.0", "creative commons attribution-sharealike 4.0"},
	{"Zlib", "altered source versions must be plainly marked as such"},
	{"LGPL-3.0", "gnu lesser general public license version 3"},
}

func kinds(text string) (out []string) {
	flat := strings.ToLower(strings.Join(strings.Fields(strings.NewReplacer(",", ", ", "*", " ", "#", " ", "//", " ").Replace(text)), " "))
	flat = strings.ReplaceAll(flat, "apache license, version", "apache license version")
	for _, p := range phrases {
		if strings.Contains(flat, p.phrase) {
			out = append(out, p.id)
		}
	}
	if strings.Contains(flat, "redistribution and use in source and binary forms") {
		if strings.Contains(flat, "neither the name") || strings.Contains(flat, "used to endorse or promote") {
			out = append(out, "BSD-3-Clause")
		} else {
			out = append(out, "BSD-2-Clause")
		}
	}
	return out
}
