package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rivulet/image/debian"
	"rivulet/image/sources"
)

// pack writes both archives.
func pack(version string, built time.Time, out string) error {
	l, err := sources.Read(".")
	if err != nil {
		return err
	}
	debs, err := debian.Cache()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	dir := filepath.Join(filepath.Dir(debs), "sources")
	apt, err := newApt("amd64", "renew the pinned packages with make bundle-pins and make image-lock, and make source-lock")
	if err != nil {
		return err
	}
	if err := apt.FetchSources(l.Files, dir); err != nil {
		return err
	}
	if err := replace(filepath.Join(out, sources.PackageArchive(version)), nil, func(w io.Writer) error { return packages(w, l, dir, version, built) }); err != nil {
		return err
	}
	proxy, err := modules()
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(filepath.Dir(proxy))) // 2.4 GB, most of it unpacked
	compress := exec.Command("zstd", "-q", "-10", "-T0", "-c")
	return replace(filepath.Join(out, sources.TreeArchive(version)), compress, func(w io.Writer) error {
		return tree(w, proxy, debs, version, built)
	})
}

// packages writes the source packages of Debian, each file once, below their list.
func packages(w io.Writer, l sources.Lock, dir, version string, built time.Time) error {
	list, err := sources.OfAll(".", version)
	if err != nil {
		return err
	}
	p := newPacker(w, strings.TrimSuffix(sources.PackageArchive(version), ".tar"), built)
	p.text("SOURCES", string(list))
	slices.SortFunc(l.Files, func(x, y debian.SourceFile) int { return strings.Compare(x.Name, y.Name) })
	for i, f := range l.Files {
		if i == 0 || f.Name != l.Files[i-1].Name {
			p.file(f.Name, filepath.Join(dir, f.Name), 0o644)
		}
	}
	return p.close()
}

// readme is in the archive of the tree. It says how the archive builds.
const readme = `The source of Rivulet %[1]s, in the folder rivulet; every Go module that its build takes, in goproxy; the Debian packages that
the bundle takes, in cache. With Go, Debian's gcc and make, without a network:

  cd rivulet
  export GOPROXY=file://$PWD/../goproxy GOSUMDB=off XDG_CACHE_HOME=$PWD/../cache
  make build ARCH=amd64 VERSION=%[1]s BUILD_TIME=%[2]d

A library under the LGPL that is linked statically (the GNU C library, libseccomp) is replaced by putting another one
into _build/bundle/linux_ARCH/sysroot and building again. Debian's source packages are in %[3]s.
`

// tree writes the files of the tree, the modules and the Debian packages of the bundle.
func tree(w io.Writer, proxy, debs, version string, built time.Time) error {
	p := newPacker(w, strings.TrimSuffix(sources.TreeArchive(version), ".tar.zst"), built)
	p.text("README", fmt.Sprintf(readme, version, built.Unix(), sources.PackageArchive(version)))
	names, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w; make sources in a clone of the repository", err)
	}
	// Sorted, because git lists first what is not committed yet.
	for _, name := range slices.Sorted(strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00")) {
		switch info, err := os.Lstat(name); {
		case errors.Is(err, fs.ErrNotExist): // deleted and not committed, in a draft
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			p.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: "rivulet/" + name, Linkname: to, Mode: 0o777})
		default:
			p.file("rivulet/"+name, name, 0o644|int64(info.Mode()&0o100)/0o100*0o111)
		}
	}
	if err := proxyFiles(p, proxy); err != nil {
		return err
	}
	pinned, err := sources.Bundle(".", "")
	if err != nil {
		return err
	}
	for _, d := range pinned {
		apt, err := debian.NewApt(d.Arch, filepath.Join(work, "debs-"+d.Arch), "", "make bundle-pins")
		if err != nil {
			return err
		}
		path, err := apt.Fetch(d, debs)
		if err != nil {
			return err
		}
		p.file("cache/rivulet/debs/"+d.File(), path, 0o644)
	}
	return p.close()
}

// proxyFiles writes the modules as Go's proxy serves them. What a proxy says of a module's origin is left out: it may
// change.
func proxyFiles(p *packer, proxy string) error {
	return filepath.WalkDir(proxy, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(proxy, path)
		if err != nil {
			return err
		}
		switch filepath.Ext(path) {
		case ".mod":
			base := strings.TrimSuffix(rel, ".mod")
			p.text("goproxy/"+base+".info", fmt.Sprintf("{\"Version\":%q}\n", unescaped(filepath.Base(base))))
			p.file("goproxy/"+rel, path, 0o644)
		case ".zip":
			p.file("goproxy/"+rel, path, 0o644)
		}
		return p.err
	})
}

// unescaped undoes what a file name does to a version with capitals: !x is X.
func unescaped(version string) string {
	parts := strings.Split(version, "!")
	for i, part := range parts[1:] {
		parts[i+1] = strings.ToUpper(part[:1]) + part[1:]
	}
	return strings.Join(parts, "")
}

// modules puts the modules of every go.mod of the tree, and what Go reads to choose them, into a cache of its own, and
// returns the part of it that is a proxy. It takes them from the user's cache, and what is missing there as Go does.
func modules() (proxy string, err error) {
	cache, err := filepath.Abs(filepath.Join(work, "modules"))
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(cache); err != nil {
		return "", err
	}
	env, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	from, rest, _ := strings.Cut(strings.TrimSpace(string(env)), "\n")
	found, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "go.mod", "*/go.mod").Output()
	if err != nil {
		return "", fmt.Errorf("git ls-files: %w; make sources in a clone of the repository", err)
	}
	for _, file := range strings.Fields(string(found)) {
		for _, args := range [][]string{{"mod", "download"}, {"mod", "graph"}} {
			cmd := exec.Command("go", args...)
			cmd.Dir = filepath.Dir(file)
			cmd.Env = append(os.Environ(), "GOMODCACHE="+cache, "GOPROXY=file://"+from+"/cache/download,"+rest, "GOFLAGS=-modcacherw -mod=readonly")
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Run(); err != nil {
				return "", fmt.Errorf("%s: go %s: %w: %s", file, strings.Join(args, " "), err, said.String())
			}
		}
	}
	return filepath.Join(cache, "cache", "download"), nil
}

// packer writes an archive below one folder, in one time, without owners. The first error ends it.
type packer struct {
	w    *tar.Writer
	top  string
	time time.Time
	err  error
}

func newPacker(w io.Writer, top string, t time.Time) *packer {
	return &packer{w: tar.NewWriter(w), top: top, time: t}
}

func (p *packer) header(h *tar.Header) {
	if h.Name, h.ModTime = p.top+"/"+filepath.ToSlash(h.Name), p.time; p.err == nil {
		p.err = p.w.WriteHeader(h)
	}
}

func (p *packer) text(name, text string) {
	p.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))})
	if p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
}

func (p *packer) file(name, path string, mode int64) {
	f, err := os.Open(path)
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		p.err = errors.Join(p.err, err)
		return
	}
	p.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()})
	if p.err == nil {
		_, p.err = io.Copy(p.w, f)
	}
}

func (p *packer) close() error { return errors.Join(p.err, p.w.Close()) }

// replace writes a file beside its place and renames it, through a program if there is one.
func replace(path string, through *exec.Cmd, write func(io.Writer) error) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	defer os.Remove(path + ".new")
	defer f.Close()
	if through == nil {
		err = write(f)
	} else {
		var in io.WriteCloser
		if in, err = through.StdinPipe(); err != nil {
			return err
		}
		if through.Stdout, through.Stderr = f, os.Stderr; through.Start() != nil {
			return errors.New("there is no zstd; apt-get install zstd")
		}
		err = errors.Join(write(in), in.Close(), through.Wait())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
