// Package sbom writes the bill of materials of a published file, in CycloneDX 1.6 (docs/design/release.md): the Go modules
// and standard library of rivulet and of each program of its bundle, the Debian packages of the bundle and of an image,
// and the libraries that are linked statically. It reads them out of rivulet itself, NOTICE (licences) and the lists of
// package sources, and alone writes FILE.cdx.json. The same file gives the same
// bytes. Failure: whatever it cannot name is an error, and nothing is written.
package sbom

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"rivulet/image/debian"
	"rivulet/image/filesum"
	"rivulet/image/sources"
)

const (
	noticeFile = "NOTICE"
	// bundleDistro is the Debian of sources.BundleList and of the building machine, ImageDistro that of device images.
	bundleDistro = "debian-12"
	ImageDistro  = "debian-13"
	own          = "rivulet" // reference of the program, to which all of its parts belong
)

// Contents is what one rivulet consists of.
type Contents struct {
	parts map[string]cdx.Component // by reference
	needs map[string][]string      // references, by reference
	lock  sources.Lock
}

// Of reads a rivulet that was built for arch (amd64, arm64 or armv7).
func Of(arch, binary string) (Contents, error) {
	c := Contents{parts: map[string]cdx.Component{}, needs: map[string][]string{}}
	raw, err := os.ReadFile(binary)
	if err != nil {
		return c, fmt.Errorf("%w; make build ARCH=%s", err, arch)
	}
	lock, err := os.ReadFile(sources.LockFile)
	if err != nil {
		return c, fmt.Errorf("%w; make source-lock", err)
	}
	if c.lock, err = sources.Parse(lock); err != nil {
		return c, err
	}
	licences, err := readNotice()
	if err != nil {
		return c, err
	}
	bundled, err := embedded(raw)
	if err != nil {
		return c, fmt.Errorf("%s: %w; make build ARCH=%s", binary, err, arch)
	}
	linked, err := c.addDebs(arch, licences, bundled)
	if err != nil {
		return c, err
	}
	program := func(name string, content []byte) error { return c.addProgram(name, content, licences, linked) }
	if err := program(own, raw); err != nil {
		return c, err
	}
	for _, name := range slices.Sorted(maps.Keys(bundled)) {
		if err := programs("bundle/"+name, bundled[name], program); err != nil {
			return c, fmt.Errorf("%s: %s: %w; make build ARCH=%s", binary, name, err, arch)
		}
	}
	return c, nil
}

// add adds a part, and that another one contains it.
func (c Contents) add(to string, part cdx.Component) {
	c.parts[part.BOMRef] = part
	if to != "" {
		c.needs[to] = append(c.needs[to], part.BOMRef)
	}
}

// addProgram adds a Go program and its modules; linked are the static libraries of those with C.
func (c Contents) addProgram(name string, content []byte, licences map[string]string, linked []string) error {
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		if f, err := elf.NewFile(bytes.NewReader(content)); err == nil && f.Section(".gopclntab") == nil {
			return nil // C: ours, or of a package
		}
		return fmt.Errorf("%s does not say what it is built of: %w", name, err)
	}
	to := ""
	if name != own {
		to = own
	}
	c.add(to, cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: name, Name: name, Hashes: hashes(sum(content))})
	modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}, &info.Main}, info.Deps...)
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Path == "" || m.Version == "" || m.Version == "(devel)" {
			continue // ours
		}
		key := m.Path + " " + m.Version
		if m.Path == "stdlib" {
			key = "Go standard library"
		}
		licence, ok := licences[key]
		if !ok {
			return fmt.Errorf("%s contains %s, and %s does not name it; make notice", name, key, noticeFile)
		}
		purl := "pkg:golang/" + (&url.URL{Path: m.Path}).EscapedPath() + "@" + url.QueryEscape(m.Version)
		c.add(name, library(purl, m.Path, m.Version, licence))
	}
	for _, s := range info.Settings {
		if s.Key == "CGO_ENABLED" && s.Value == "1" {
			c.needs[name] = append(c.needs[name], linked...)
		}
	}
	return nil
}

// addDebs adds the pinned packages of the bundle and the compiler's libraries, and returns those that are linked into
// programs.
func (c Contents) addDebs(arch string, licences map[string]string, bundled map[string][]byte) (linked []string, err error) {
	all, err := sources.Bundle(".", debianArch(arch))
	if err != nil {
		return nil, err
	}
	unpacked := map[string]bool{} // name and version
	for line := range strings.Lines(string(bundled["netfilter/packages"])) {
		unpacked[strings.TrimSpace(line)] = true
	}
	names := map[string]bool{}
	for _, d := range all {
		names[d.Name] = true
		ref, err := c.addDeb(own, d, bundleDistro, licences[d.Name+" "+d.Version])
		if err != nil {
			return nil, err
		}
		if key := d.Name + " " + d.Version; unpacked[key] {
			delete(unpacked, key)
		} else {
			linked = append(linked, ref)
		}
	}
	if len(unpacked) > 0 || len(names) == 0 {
		return nil, fmt.Errorf("the bundle contains %v, and %s does not name them; make build ARCH=%s", slices.Collect(maps.Keys(unpacked)), sources.BundleList, arch)
	}
	static, err := compilersLibraries(arch, names)
	if err != nil {
		return nil, err
	}
	for _, p := range static {
		ref := purlOf(p.Deb, bundleDistro, p.Source)
		c.add(own, library(ref, p.Name, p.Version, ""))
		linked = append(linked, ref)
	}
	return linked, nil
}

// addDeb adds a pinned package, and the sources of other packages that are compiled into it.
func (c Contents) addDeb(to string, d debian.Deb, distro, licence string) (string, error) {
	from := c.lock.Of(d)
	if len(from) == 0 {
		return "", fmt.Errorf("%s has no sources in %s; make source-lock, read its diff and commit it", d, sources.LockFile)
	}
	ref := purlOf(d, distro, from[0])
	part := library(ref, d.Name, d.Version, licence)
	part.Hashes = hashes(d.SHA256)
	c.add(to, part)
	for _, s := range from[1:] {
		c.add(ref, library(purlOf(debian.Deb{Arch: "source", Name: s.Name, Version: s.Version}, distro, debian.SourceVersion{}), s.Name, s.Version, ""))
	}
	return ref, nil
}

// Toolchains returns the versions of Go that the programs were built with, like go1.26.8.
func (c Contents) Toolchains() (all []string) {
	for _, part := range c.parts {
		if part.Name == "stdlib" {
			all = append(all, "go"+part.Version)
		}
	}
	return all
}

// Write writes the bill of a published file with this rivulet in it: FILE.cdx.json, without .zst. system are the
// packages beside rivulet, of an image.
func (c Contents) Write(file, version string, built time.Time, system []debian.Deb) error {
	hash, _, err := filesum.SHA256(file)
	if err != nil {
		return err
	}
	subject := cdx.Component{Type: cdx.ComponentTypeFile, BOMRef: filepath.Base(file), Name: filepath.Base(file), Version: version, Hashes: hashes(hash)}
	all := Contents{maps.Clone(c.parts), maps.Clone(c.needs), c.lock}
	all.needs[subject.BOMRef] = []string{own}
	for _, d := range system {
		if _, err := all.addDeb(subject.BOMRef, d, ImageDistro, ""); err != nil {
			return err
		}
	}
	bom := cdx.NewBOM() // without a serial number: the same file, the same bytes
	bom.Metadata = &cdx.Metadata{Timestamp: built.UTC().Format(time.RFC3339), Component: &subject}
	bom.Components, bom.Dependencies = &[]cdx.Component{}, &[]cdx.Dependency{}
	for _, ref := range slices.Sorted(maps.Keys(all.parts)) {
		part := all.parts[ref]
		if ref == own {
			part.Version = version
		}
		*bom.Components = append(*bom.Components, part)
	}
	for _, ref := range slices.Sorted(maps.Keys(all.needs)) {
		refs := slices.Sorted(slices.Values(all.needs[ref]))
		refs = slices.Compact(refs)
		*bom.Dependencies = append(*bom.Dependencies, cdx.Dependency{Ref: ref, Dependencies: &refs})
	}
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(file, ".zst")+".cdx.json", text.Bytes(), 0o644)
}

func library(ref, name, version, licence string) cdx.Component {
	part := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: ref, PackageURL: ref, Name: name, Version: version}
	if licence != "" {
		part.Licenses = &cdx.Licenses{{Expression: licence}}
	}
	return part
}

func hashes(sha256 string) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sha256}}
}

// purlOf is a package's name for tools that look up known faults; Debian's are listed by source.
func purlOf(d debian.Deb, distro string, source debian.SourceVersion) string {
	out := "pkg:deb/debian/" + url.QueryEscape(d.Name) + "@" + url.QueryEscape(d.Version) + "?arch=" + d.Arch + "&distro=" + distro
	if source.Name != "" {
		out += "&upstream=" + url.QueryEscape(source.Name+"@"+source.Version)
	}
	return out
}

func debianArch(arch string) string { return strings.Replace(arch, "armv7", "armhf", 1) }

// readNotice returns licences, as SPDX expressions, by name and version.
func readNotice() (map[string]string, error) {
	text, err := os.ReadFile(noticeFile)
	if err != nil {
		return nil, fmt.Errorf("%w; make notice", err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, licence, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && strings.HasPrefix(line, "  ") {
			licence, _, _ = strings.Cut(licence, " (") // how it is used
			out[name] = strings.ReplaceAll(licence, ", ", " AND ")
		}
	}
	return out, nil
}
