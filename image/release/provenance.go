package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"rivulet/image/filesum"
)

// toolPackages are patterns of the building machine's packages that make parts of a release, or are linked into one.
var toolPackages = []string{"binutils*", "gcc*", "libc6-dev*", "libgcc-*-dev*", "linux-libc-dev*", "make", "zstd", "xz-utils", "dpkg", "apt",
	"mtools", "dosfstools", "e2fsprogs", "fdisk", "squashfs-tools", "kmod", "syslinux*"}

// making is what a release was made of and with.
type making struct {
	origin
	arches, imageArches []string
	commit              string   // none: a draft outside of a clone
	packages            []string // of the building machine: name, version, architecture
}

func (o origin) making(ctx context.Context, arches, imageArches []string) (m making, err error) {
	m = making{origin: o, arches: arches, imageArches: imageArches}
	if m.commit, err = o.git(ctx, "rev-parse", "HEAD"); err != nil && !o.draft {
		return m, err
	}
	const format = "${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n"
	out, err := exec.CommandContext(ctx, "dpkg-query", append([]string{"--show", "--showformat=" + format}, toolPackages...)...).Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) { // its status is 1 if one pattern fits no package
		return m, fmt.Errorf("%w; build on Debian", err)
	}
	for line := range strings.Lines(string(out)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "ii "); ok {
			m.packages = append(m.packages, strings.TrimSpace(p))
		}
	}
	if len(m.packages) == 0 {
		return m, errors.New("dpkg-query knows no package of a compiler; build on Debian")
	}
	return m, nil
}

// buildInfo is the file BUILDINFO, in the form of Debian's .buildinfo files.
func (m making) buildInfo(built time.Time) string {
	var out strings.Builder
	for _, f := range [][2]string{
		{"Format", "1.0"}, {"Source", "rivulet"}, {"Version", m.version}, {"Commit", m.commit}, {"Build-Date", built.Format(time.RFC3339)},
		{"Architecture", strings.Join(m.arches, " ")}, {"Images", strings.Join(m.imageArches, " ")}, {"Releases", m.releases},
		{"Root-Keys", m.rootKeys}, {"Key-Generation", m.generation}, {"Build-Architecture", runtime.GOARCH}, {"Go", runtime.Version()},
	} {
		fmt.Fprintln(&out, strings.TrimSpace(f[0]+": "+f[1]))
	}
	out.WriteString("Installed-Build-Depends:\n")
	for _, p := range m.packages {
		f := strings.Fields(p)
		fmt.Fprintf(&out, " %s:%s (= %s),\n", f[0], f[2], f[1])
	}
	return out.String()
}

// The statement is of in-toto's form v1, what it says of SLSA's provenance v1.
type (
	object    map[string]any
	statement struct {
		Type          string   `json:"_type"`
		Subject       []object `json:"subject"`
		PredicateType string   `json:"predicateType"`
		Predicate     object   `json:"predicate"`
	}
)

// provenance says of each file of the folder what it was made of, and with what.
func (m making) provenance(sums []fileSum, built time.Time) ([]byte, error) {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, f := range sums {
		s.Subject = append(s.Subject, object{"name": f.name, "digest": object{"sha256": f.sum}})
	}
	from := []object{
		{"name": "rivulet", "digest": object{"gitCommit": m.commit}},
		{"name": "go", "uri": "pkg:golang/toolchain@" + strings.TrimPrefix(runtime.Version(), "go")},
	}
	for _, p := range m.packages {
		f := strings.Fields(p)
		from = append(from, object{"name": f[0], "uri": "pkg:deb/debian/" + url.QueryEscape(f[0]) + "@" + url.QueryEscape(f[1]) + "?arch=" + f[2]})
	}
	s.Predicate = object{
		"buildDefinition": object{
			"buildType": "https://rivulet.dev/make-release/v1",
			"externalParameters": object{"version": m.version, "architectures": m.arches, "images": m.imageArches, "releases": m.releases,
				"rootKeys": m.rootKeys, "keyGeneration": m.generation, "buildTime": built.Format(time.RFC3339)},
			"resolvedDependencies": from,
		},
		"runDetails": object{"builder": object{"id": "https://rivulet.dev/make-release"}},
	}
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}

// fileSum is the SHA-256 of a file of the release.
type fileSum struct{ name, sum string }

// sumsOf hashes the files of the folder. Folders in it are the repositories', which have signatures of their own.
func sumsOf(out string) (all []fileSum, err error) {
	files, err := os.ReadDir(out) // sorted
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.IsDir() {
			continue
		}
		sum, _, err := filesum.SHA256(filepath.Join(out, f.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, fileSum{f.Name(), sum})
	}
	return all, nil
}

// writeMaking writes BUILDINFO, and the statement of where all files come from.
func (m making) writeMaking(out string) error {
	built, err := m.builtAt()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "BUILDINFO"), []byte(m.buildInfo(built)), 0o644); err != nil {
		return err
	}
	sums, err := sumsOf(out)
	if err != nil {
		return err
	}
	text, err := m.provenance(sums, built)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "rivulet-"+m.version+".provenance.json"), text, 0o644)
}

var toolchainLine = regexp.MustCompile(`(?m)^toolchain (go\S+)$`)

// checkToolchain demands that all programs were made by the Go that go.mod names: another one makes other bytes.
func (o origin) checkToolchain(binary string, made []string) error {
	text, err := os.ReadFile(filepath.Join(o.tree, "go.mod"))
	if err != nil {
		return err
	}
	want := toolchainLine.FindSubmatch(text)
	if want == nil {
		return errors.New("go.mod names no toolchain; write it there, as image/bundle/runc/go.mod has it")
	}
	for _, v := range made {
		if v != string(want[1]) && !o.draft {
			return fmt.Errorf("%s has programs made by %s, and go.mod names %s; build with that one (GOTOOLCHAIN=%s)%s", binary, v, want[1], want[1], orDraft)
		}
	}
	return nil
}
