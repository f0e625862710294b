package main

import (
	"cmp"
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
	dir           string   // its root in the module cache
	files         []string // of licences and notices
	licences      []string // SPDX identifiers
}

func (m module) id() string { return strings.TrimSpace(m.path + " " + m.version) }

// plugins are upstream's CNI plugins, which cmd/rivulet-cni links by way of generated packages (image/bundle/graph.go).
const plugins = "github.com/containernetworking/plugins/plugins/"

// graphs are the programs of a release, by the folder of their module and the tags that they are built with.
var graphs = []struct {
	dir      string
	tags     string // none: those of the release
	programs []string
}{
	{".", "", []string{"./cmd/rivulet"}},
	{".", "no_grpc", []string{"./cmd/rivulet-tunnel", "./cmd/rivulet-cni", "./cmd/rivulet-gateway", "./cmd/rivulet-hello",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		plugins + "main/bridge", plugins + "main/loopback", plugins + "ipam/host-local", plugins + "meta/portmap", plugins + "meta/bandwidth"}},
	{"image/bundle/runc", "seccomp netgo osusergo", []string{"github.com/opencontainers/runc"}},
}

// modules returns those of all programs and architectures, sorted.
func modules(tags string) ([]module, error) {
	found := map[string]*module{}
	for _, g := range graphs {
		for _, arch := range []string{"amd64", "arm64", "arm"} {
			cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module,Dir,Standard", "-tags", cmp.Or(g.tags, tags)}, g.programs...)...)
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
	m := module{path: "Go standard library", dir: strings.TrimSpace(string(goroot))}
	if err := m.add(m.dir); err != nil {
		return nil, err
	}
	out := []module{m}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[key])
	}
	for i := range out {
		if err := out[i].settle(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// read adds the packages of `go list -json` to their modules.
func read(r io.Reader, found map[string]*module) error {
	type listed struct {
		Path, Version, Dir string
		Main               bool
		Replace            *listed
	}
	dec := json.NewDecoder(r)
	for {
		var p struct {
			Dir    string
			Module *listed
		}
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
		key := m.Path + " " + m.Version
		if found[key] == nil {
			found[key] = &module{path: m.Path, version: m.Version, dir: m.Dir}
		}
		if err := found[key].add(p.Dir); err != nil {
			return err
		}
	}
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|unlicense)`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents|copyright)`)
)

// add reads the licences that apply to a package: those in its folder and in each folder above it, up to the module's
// root. A licence file that is unknown or not allowed is an error.
func (m *module) add(dir string) error {
	if rel, err := filepath.Rel(m.dir, dir); err != nil || !filepath.IsLocal(rel) {
		return fmt.Errorf("%s: the package in %s is outside of the module's folder %s", m.id(), dir, m.dir)
	}
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.id(), err)
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			is := licenceFile.MatchString(e.Name())
			if e.IsDir() || filepath.Ext(name) == ".go" || !is && !noticeFile.MatchString(e.Name()) || slices.Contains(m.files, name) {
				continue
			}
			m.files = append(m.files, name)
			if !is {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			if err := m.grants(name, string(text)); err != nil {
				return err
			}
		}
		if dir == m.dir {
			return nil
		}
	}
}

// grants adds the licences of one file.
func (m *module) grants(name, text string) error {
	found := kinds(text)
	if len(found) == 0 {
		return fmt.Errorf("%s: %s is no licence that is known; read it, and add it to image/licenses/collect", m.id(), name)
	}
	for _, id := range found {
		if !slices.Contains(allowed, id) {
			return fmt.Errorf("%s: %s is under %s, which is not allowed in the binary; read it, and remove what imports the module", m.id(), name, id)
		}
	}
	m.licences = append(m.licences, found...)
	return nil
}

// settle sorts what add has found, the root's files first. A module without a licence is an error.
func (m *module) settle() error {
	slices.SortFunc(m.files, func(x, y string) int {
		return cmp.Or(cmp.Compare(strings.Count(x, "/"), strings.Count(y, "/")), cmp.Compare(x, y))
	})
	slices.Sort(m.licences)
	m.licences = slices.Compact(m.licences)
	if len(m.licences) == 0 {
		return fmt.Errorf("%s: no licence in %s; read it, and add it to image/licenses/collect", m.id(), m.dir)
	}
	return nil
}

// allowed are the licences that a module in the binary may have. Those of Creative Commons are of documentation, which
// is not linked.
var allowed = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MPL-2.0", "Zlib", "CC0-1.0", "Unlicense", "CC-BY-4.0", "CC-BY-SA-4.0"}

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
	// By their titles and by how a file says that it is under them: the MPL names them too.
	{"LGPL", "gnu lesser general public license version"},
	{"LGPL", "gnu library general public license version"},
	{"LGPL", "terms of the gnu lesser general public license"},
	{"LGPL", "terms of the gnu library general public license"},
	{"AGPL", "gnu affero general public license version 3, 19 november"},
	{"AGPL", "terms of the gnu affero general public license"},
	{"GPL", "gnu general public license version"},
	{"GPL", "terms of the gnu general public license"},
	{"EPL", "eclipse public license"},
	{"CDDL", "common development and distribution license"},
	{"BUSL-1.1", "business source license"},
	{"SSPL-1.0", "server side public license"},
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
