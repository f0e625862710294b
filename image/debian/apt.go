package debian

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rivulet/image/filesum"
)

// Apt queries the build host's package sources for packages of one architecture. It has its own lists: nothing of the
// host changes.
type Apt struct {
	arch, dir string
	renew     string // the cure if a mirror no longer has the pinned packages
	archive   archive
	updated   bool
	output    string // output of an update that was incomplete
}

// NewApt keeps apt's state in dir. sources, if not empty, replace the host's own; errors end with renew as their cure.
func NewApt(arch, dir, sources, renew string) (*Apt, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf("APT::Architecture %q;\nAPT::Architectures { %q; };\nDir::State %q;\nDir::State::status %q;\nDir::Cache %q;\n"+
		"Acquire::Languages \"none\";\nAPT::Sandbox::User \"\";\nAPT::Install-Recommends \"false\";\n",
		arch, arch, filepath.Join(dir, "state"), filepath.Join(dir, "status"), filepath.Join(dir, "cache"))
	if sources != "" {
		list := filepath.Join(dir, "sources.list")
		if err := os.WriteFile(list, []byte(sources), 0o644); err != nil {
			return nil, err
		}
		config += fmt.Sprintf("Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts \"-\";\n", list)
	}
	if err := os.WriteFile(filepath.Join(dir, "status"), nil, 0o644); err != nil {
		return nil, err
	}
	return &Apt{arch: arch, dir: dir, renew: renew, archive: archive{address: snapshots, pause: 2 * time.Second}}, os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(config), 0o644)
}

func (a *Apt) run(dir, program string, args ...string) ([]byte, error) {
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

// update fetches the lists once. If one of many sources fails it continues: a missing package is an error when it is
// fetched.
func (a *Apt) update() error {
	if a.updated {
		return nil
	}
	a.updated = true
	if _, err := a.run(a.dir, "apt-get", "-q", "update"); errors.Is(err, exec.ErrNotFound) {
		return err
	} else if err != nil {
		a.output = "; apt-get update said: " + err.Error()
	}
	return nil
}

// Fetch downloads the package with the pinned hash to dir and returns its path.
func (a *Apt) Fetch(d Deb, dir string) (string, error) {
	paths, err := a.FetchAll([]Deb{d}, dir)
	if err != nil {
		return "", err
	}
	return paths[0], nil
}

// FetchAll downloads the missing packages to dir, all at once, and returns the paths of all.
func (a *Apt) FetchAll(debs []Deb, dir string) (paths []string, err error) {
	var missing []Deb
	download := []string{"-q", "download"}
	for _, d := range debs {
		path := filepath.Join(dir, d.File())
		if err := check(path, d.SHA256); errors.Is(err, fs.ErrNotExist) {
			missing, download = append(missing, d), append(download, d.Name+"="+d.Version)
		} else if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	if len(missing) == 0 {
		return paths, nil
	}
	if err := a.update(); err != nil {
		d := missing[0]
		return nil, fmt.Errorf("%s is needed and %w; build on Debian, or put %s with the SHA-256 %s into %s", d, err, d.File(), d.SHA256, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	fresh, err := os.MkdirTemp(dir, ".fetch-") // a partial download is never at its final path
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(fresh)
	_, _ = a.run(fresh, "apt-get", download...) // a missing package is fetched again below, which reports the cause
	for _, d := range missing {
		got := filepath.Join(fresh, d.File())
		if _, err := os.Stat(got); err != nil {
			_, err := a.run(fresh, "apt-get", "-q", "download", d.Name+"="+d.Version)
			if err != nil {
				if archived := a.archive.deb(d, got); archived != nil {
					return nil, fmt.Errorf("%s cannot be had: %w%s; nor of the archive of all versions: %w; if it was replaced by a newer one, %s", d, err, a.output, archived, a.renew)
				}
			}
		}
		if err := check(got, d.SHA256); err != nil {
			return nil, err
		}
		if err := os.Rename(got, filepath.Join(dir, d.File())); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// check compares a file with its hash. A wrong file is neither used nor overwritten.
func check(path, want string) error {
	got, _, err := filesum.SHA256(path)
	if err == nil && got != want {
		return fmt.Errorf("%s has SHA-256 %s, pinned is %s; remove it and look where it came from", path, got, want)
	}
	return err
}

// Offered returns the current version in the sources; apt has checked their signatures.
func (a *Apt) Offered(name string) (Deb, error) {
	if err := a.update(); err != nil {
		return Deb{}, err
	}
	out, err := a.run(a.dir, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return Deb{}, fmt.Errorf("%w%s", err, a.output)
	}
	d, err := record(out, name)
	if err == nil && d.Arch == "" {
		d.Arch = a.arch
	}
	return d, err
}

// Resolve returns all packages that an installation of wanted consists of, by name, as they are in the sources now. A
// name may have a suite (name/suite).
func (a *Apt) Resolve(wanted []string) ([]Deb, error) {
	if err := a.update(); err != nil {
		return nil, err
	}
	out, err := a.run(a.dir, "apt-get", append([]string{"-q", "-s", "install"}, wanted...)...)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, a.output)
	}
	// One call, because apt reads its lists again in each.
	text, err := a.run(a.dir, "apt-cache", append([]string{"show"}, simulated(out)...)...)
	if err != nil {
		return nil, err
	}
	var all []Deb
	for _, one := range bytes.Split(bytes.TrimSpace(text), []byte("\n\n")) {
		d, err := record(one, "")
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(x Deb) bool { return x.Name == d.Name }) {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(x, y Deb) int { return strings.Compare(x.Name, y.Name) })
	return all, nil
}

// simulated reads name=version from lines like "Inst bash (5.2.37-2 Debian:13/stable [amd64])".
func simulated(out []byte) (all []string) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) >= 3 && f[0] == "Inst" && strings.HasPrefix(f[2], "(") {
			name, _, _ := strings.Cut(f[1], ":")
			all = append(all, name+"="+f[2][1:])
		}
	}
	return all
}

// record parses the record of one package.
func record(text []byte, name string) (Deb, error) {
	d := Deb{Name: name}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && lines.Text() != ""; {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "Package":
			d.Name = value
		case "Architecture":
			d.Arch = value
		case "Version":
			d.Version = value
		case "SHA256":
			d.SHA256 = value
		}
	}
	if d.Version == "" || d.SHA256 == "" {
		return Deb{}, fmt.Errorf("apt-cache show %s: a package has no version or no SHA-256; run apt-get update on this machine", d.Name)
	}
	return d, nil
}
