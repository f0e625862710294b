package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/debian"
	"rivulet/image/sources"
)

// wanted reads the list: the packages of an architecture, and those left out.
func wanted(text []byte, arch string) (want, left []string, err error) {
	n := 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		n++
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 2 || (f[0] != "both" && !slices.Contains(sources.ImageArches, f[0])) {
			return nil, nil, fmt.Errorf("line %d is not: both|amd64|arm64 package", n)
		}
		if f[0] != "both" && f[0] != arch {
			continue
		}
		if name, out := strings.CutPrefix(f[1], "-"); out {
			left = append(left, name)
		} else {
			want = append(want, f[1])
		}
	}
	return want, left, nil
}

func newApt(arch, dir string) (*debian.Apt, error) {
	host, err := debian.HostSources("/etc/apt")
	if err != nil {
		return nil, err
	}
	lines, err := debian.Suites(host, release, "main", "non-free-firmware")
	if err != nil {
		return nil, err
	}
	return debian.NewApt(arch, dir, lines, renew)
}

const lockHead = `# What images are made of: architecture of the image, package, version, SHA-256.
# Written by make image-lock from packages.list; every package is checked against it.
`

// writeLock resolves the list for all architectures. A package that all of them share is listed once per image, so that
// each list is complete.
func writeLock(work string) error {
	text, err := os.ReadFile(listFile)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString(lockHead)
	for _, arch := range sources.ImageArches {
		want, left, err := wanted(text, arch)
		if err != nil {
			return fmt.Errorf("%s: %w", listFile, err)
		}
		apt, err := newApt(arch, filepath.Join(work, "apt-"+arch))
		if err != nil {
			return err
		}
		debs, err := apt.Resolve(want)
		if err != nil {
			return err
		}
		for _, d := range debs {
			if !slices.Contains(left, d.Name) {
				fmt.Fprintf(&out, "%s %s %s %s %s\n", arch, d.Arch, d.Name, d.Version, d.SHA256)
			}
		}
	}
	return os.WriteFile(sources.ImageLock, out.Bytes(), 0o644)
}

// unpack makes the root tree from the packages, base-files first: it has the links /bin and /lib.
func (j *job) unpack() error {
	debs, err := sources.Image(".", j.arch)
	if err != nil {
		return err
	}
	j.debs = debs
	apt, err := newApt(j.arch, filepath.Join(j.work, "apt"))
	if err != nil {
		return err
	}
	cache, err := debian.Cache()
	if err != nil {
		return err
	}
	slices.SortStableFunc(j.debs, func(x, y debian.Deb) int {
		if first := x.Name == "base-files"; first != (y.Name == "base-files") {
			return map[bool]int{true: -1, false: 1}[first]
		}
		return strings.Compare(x.Name, y.Name)
	})
	paths, err := apt.FetchAll(j.debs, cache)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := run("", "dpkg-deb", "-x", path, j.root); err != nil {
			return err
		}
	}
	return nil
}
