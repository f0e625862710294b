package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// bom is a bill of materials in CycloneDX 1.5. It has no serial number and no time: the same binary gives the same
// bytes.
type bom struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
}

// helpers are the Go programs of the bundle that have dependencies.
var helpers = []string{"runc", "containerd-shim-runc-v2", "cni", "rivulet-tunnel"}

// billOfMaterials writes the content of a binary: the modules that Go recorded in it and in the programs of its bundle,
// and the Debian packages.
func billOfMaterials(version, arch, binary, bundle, debs, file string) error {
	own := component{Type: "application", Ref: "rivulet", Name: "rivulet", Version: version}
	all := map[string]component{}
	for _, program := range append([]string{binary}, programs(bundle)...) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("%s: %w; make build ARCH=%s", program, err, arch)
		}
		addModules(all, info)
	}
	list, err := os.ReadFile(debs)
	if err != nil {
		return err
	}
	for _, f := range packages(string(list), []string{arch}) {
		purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", f[1], f[2], f[0])
		all[purl] = component{Type: "library", Ref: purl, Name: f[1], Version: f[2], PURL: purl}
	}
	b := bom{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{own}}
	for _, c := range all {
		b.Components = append(b.Components, c)
	}
	slices.SortFunc(b.Components, func(x, y component) int { return strings.Compare(x.Ref, y.Ref) })
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func programs(bundle string) (out []string) {
	for _, name := range helpers {
		out = append(out, filepath.Join(bundle, name))
	}
	return out
}

func addModules(all map[string]component, info *debug.BuildInfo) {
	add := func(path, version string) {
		purl := "pkg:golang/" + path + "@" + version
		all[purl] = component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
	}
	add("stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	for _, m := range append(info.Deps, &info.Main) {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Path != "" && m.Version != "" && m.Version != "(devel)" {
			add(m.Path, m.Version)
		}
	}
}
