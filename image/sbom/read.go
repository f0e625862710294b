package sbom

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/bundle"
	"rivulet/image/debian"
)

var (
	elfMagic  = []byte("\x7fELF")
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	gzipMagic = []byte{0x1f, 0x8b}
)

func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

func newZstd(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(64<<20))
}

// embedded returns the files of the bundle in a binary: the archive whose files are those of its manifest.
func embedded(binary []byte) (map[string][]byte, error) {
	z, err := newZstd(nil)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	for rest := binary; ; rest = rest[1:] {
		at := bytes.Index(rest, zstdMagic)
		if at < 0 {
			return nil, errors.New("it has no bundle")
		}
		rest = rest[at:]
		if err := z.Reset(bytes.NewReader(rest)); err != nil {
			continue
		}
		files := map[string][]byte{}
		err := untar(z, func(name string, content []byte) error { files[name] = content; return nil })
		var m bundle.Manifest
		if err != nil || json.Unmarshal(files["manifest.json"], &m) != nil || len(m.Files) == 0 {
			continue // something else that is compressed, or looks like it
		}
		for _, f := range m.Files {
			if f.Link == "" && sum(files[f.Name]) != f.SHA256 {
				return nil, fmt.Errorf("%s of its bundle is damaged", f.Name)
			}
		}
		return files, nil
	}
}

func untar(r io.Reader, do func(name string, content []byte) error) error {
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := do(h.Name, content); err != nil {
			return err
		}
	}
}

// programs calls do for each ELF file, in archives too.
func programs(name string, content []byte, do func(name string, program []byte) error) error {
	unpacked := io.Reader(nil)
	switch {
	case bytes.HasPrefix(content, elfMagic):
		return do(name, content)
	case len(content) > 262 && string(content[257:262]) == "ustar":
		return untar(bytes.NewReader(content), func(inner string, content []byte) error { return programs(name+"/"+inner, content, do) })
	case bytes.HasPrefix(content, zstdMagic):
		z, err := newZstd(bytes.NewReader(content))
		if err != nil {
			return err
		}
		defer z.Close()
		unpacked = z
	case bytes.HasPrefix(content, gzipMagic):
		z, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return err
		}
		unpacked = z
	default:
		return nil
	}
	content, err := io.ReadAll(unpacked)
	if err != nil {
		return err
	}
	return programs(strings.TrimSuffix(name, ".zst"), content, do)
}

// library's package on the building machine, and its source.
type installed struct {
	debian.Deb
	Source debian.SourceVersion
}

var crossPrefix = map[string]string{"amd64": "x86_64-linux-gnu-", "arm64": "aarch64-linux-gnu-", "armv7": "arm-linux-gnueabihf-"}

// compilersLibraries returns the packages of the static libraries that the C compiler adds, but for those that are pinned.
func compilersLibraries(arch string, pinned map[string]bool) (all []installed, err error) {
	compiler := crossPrefix[arch] + "gcc"
	if strings.TrimSuffix(arch, "v7") == runtime.GOARCH {
		compiler = "gcc"
	}
	for _, name := range []string{"libc.a", "libgcc.a", "libgcc_eh.a"} {
		file, err := exec.Command(compiler, "-print-file-name="+name).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w; make deps ARCH=%s", compiler, err, arch)
		}
		path, err := filepath.EvalSymlinks(strings.TrimSpace(string(file)))
		if err != nil {
			return nil, fmt.Errorf("%s has no %s: %w; make deps ARCH=%s", compiler, name, err, arch)
		}
		owner, err := exec.Command("dpkg-query", "--search", path).Output()
		if err != nil {
			return nil, fmt.Errorf("no package has %s: %w; build on Debian", path, err)
		}
		of, _, _ := strings.Cut(string(owner), ": ")
		const format = "${Package} ${Version} ${Architecture} ${source:Package} ${source:Version}"
		text, err := exec.Command("dpkg-query", "--show", "--showformat="+format, of).Output()
		f := strings.Fields(string(text))
		if err != nil || len(f) != 5 {
			return nil, fmt.Errorf("dpkg-query --show %s: %w: %q", of, err, text)
		}
		p := installed{debian.Deb{Arch: f[2], Name: f[0], Version: f[1]}, debian.SourceVersion{Name: f[3], Version: f[4]}}
		base, _, _ := strings.Cut(p.Name, "-"+debianArch(arch)+"-cross")
		if !pinned[base] && (len(all) == 0 || all[len(all)-1] != p) {
			all = append(all, p)
		}
	}
	return all, nil
}
