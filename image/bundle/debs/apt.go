package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// apt asks the build host's package sources for packages of one architecture,
// with lists of its own: the host need not know the architecture, and nothing
// of the host changes.
type apt struct {
	arch, dir string
	updated   bool
	said      string // what the update said when it did not get everything
}

func newApt(arch, dir string) (*apt, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf("APT::Architecture %q;\nAPT::Architectures { %q; };\nDir::State %q;\nDir::State::status %q;\nDir::Cache %q;\nAcquire::Languages \"none\";\nAPT::Sandbox::User \"\";\n",
		arch, arch, filepath.Join(dir, "state"), filepath.Join(dir, "status"), filepath.Join(dir, "cache"))
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	return &apt{arch: arch, dir: dir}, os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(config), 0o644)
}

func (a *apt) run(dir, program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C.UTF-8")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out, err
}

// update fetches the lists once. That one of many sources fails is no reason to
// give up: what is missing shows when a package is asked for.
func (a *apt) update() error {
	if a.updated {
		return nil
	}
	a.updated = true
	if _, err := a.run(a.dir, "apt-get", "-q", "update"); errors.Is(err, exec.ErrNotFound) {
		return err
	} else if err != nil {
		a.said = "; apt-get update said: " + err.Error()
	}
	return nil
}

// fetch leaves the package in dir, with the pinned hash, and returns its path.
func (a *apt) fetch(d deb, dir string) (string, error) {
	path := filepath.Join(dir, d.file())
	err := check(path, d.sha256)
	if err == nil {
		return path, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := a.update(); err != nil {
		return "", fmt.Errorf("%s is needed and %w; build on Debian, or put %s with the SHA-256 %s into %s", d, err, d.file(), d.sha256, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(dir, ".fetch-") // nothing half fetched at its place
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	if _, err := a.run(fresh, "apt-get", "-q", "download", d.name+"="+d.version); err != nil {
		return "", fmt.Errorf("%s cannot be had: %w%s; if it was replaced by a newer one, %s", d, err, a.said, renew)
	}
	got := filepath.Join(fresh, d.file())
	if err := check(got, d.sha256); err != nil {
		return "", err
	}
	return path, os.Rename(got, path)
}

// check compares a file with its hash. A wrong one is never used and never overwritten in silence.
func check(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("%s has SHA-256 %s, pinned is %s; remove it and look where it came from", path, got, want)
	}
	return nil
}

// offered is what the sources have now; apt has checked their signatures.
func (a *apt) offered(name string) (deb, error) {
	if err := a.update(); err != nil {
		return deb{}, err
	}
	out, err := a.run(a.dir, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return deb{}, fmt.Errorf("%w%s", err, a.said)
	}
	return record(out, a.arch, name)
}

// record reads one package's paragraph.
func record(text []byte, arch, name string) (deb, error) {
	d := deb{arch: arch, name: name}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && lines.Text() != ""; {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "Version":
			d.version = value
		case "SHA256":
			d.sha256 = value
		}
	}
	if d.version == "" || d.sha256 == "" {
		return deb{}, fmt.Errorf("apt-cache show %s (%s) has no version and SHA-256", name, arch)
	}
	return d, nil
}
