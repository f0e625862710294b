// Command release makes the published files from the binaries that the Makefile built (docs/design/release.md). The
// same binaries give the same bytes. It reads IN/ARCH/rivulet, IN/image, image/bundle/bundle_* and what rivulet/image/sbom
// reads, alone writes the folder -out and the file -sizes, and fails if a file is larger than its limit.
//
//	go run ./image/release -draft -version v1-draft -in bin -out bin/release -sizes bin/sizes.md amd64 arm64 armv7
package main

import (
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"rivulet/image/sbom"
	"rivulet/image/sources"
)

// limits of the compressed files, in bytes.
var limits = map[string]int64{"amd64": 80e6}

// machines are the ELF machines of the architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "armv7": elf.EM_ARM}

func main() {
	version := flag.String("version", "", "version in the files' names")
	in := flag.String("in", "bin", "folder with ARCH/rivulet")
	out := flag.String("out", "bin/release", "folder for what is published")
	sizes := flag.String("sizes", "", "file for the table of sizes")
	imageArches := flag.String("images", "", "architectures whose images are published with it, from IN/image; none: no images")
	packaged := flag.String("packages", "", "folder with ARCH/*.deb and *.rpm; none: no packages")
	repository := flag.String("repository", "", "folder of image/package/repository, published with it; none: no repositories")
	archives := flag.String("sources", "", "folder with the archives of sources")
	only := flag.Bool("check", false, "only say whether this tree, and the images that are there, may be released")
	lockLibc := flag.Bool("libc-lock", false, "only write "+libcLock+" with what is installed here")
	o := origin{tree: "."}
	flag.StringVar(&o.rootKeys, "roots", "", "public root keys that are linked in, for install.sh too")
	flag.StringVar(&o.generation, "generation", "", "the lowest generation of a signing key, likewise")
	flag.StringVar(&o.built, "built", "", "the time of the build that is linked in, seconds since 1970")
	flag.StringVar(&o.key, "key", "", "file of the signing key")
	flag.StringVar(&o.certificate, "certificate", "", "file of its certificate")
	flag.StringVar(&o.releases, "releases", "", "where releases are published, for install.sh")
	flag.StringVar(&o.contact, "contact", "", "where to report what must not be public")
	flag.BoolVar(&o.draft, "draft", false, "make a draft, of whatever tree")
	flag.BoolVar(&o.once, "once", false, "nothing was built twice")
	flag.Parse()
	o.version = *version
	if *lockLibc {
		fail(o.writeLibc(context.Background(), flag.Args()))
		return
	}
	_, err := sources.Read(o.tree)
	err = errors.Join(o.check(context.Background()), err, o.checkTested(filepath.Join(*in, "image"), strings.Fields(*imageArches)),
		o.checkLibc(context.Background(), flag.Args(), *only))
	if err == nil && !*only {
		if err = errors.Join(o.checkSources(context.Background(), *archives), o.checkMade(context.Background(), *in, flag.Args(), strings.Fields(*imageArches))); err == nil {
			err = run(o, *in, *out, *sizes, *packaged, *repository, *archives, flag.Args(), strings.Fields(*imageArches))
		}
	}
	fail(err)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(o origin, in, out, sizes, packaged, repository, archives string, arches, imageArches []string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var all []size
	// First, because compressing takes minutes.
	if err := o.images(filepath.Join(in, "image"), out, imageArches); err != nil {
		return err
	}
	for _, arch := range arches {
		s, err := o.publishBinary(arch, filepath.Join(in, arch, "rivulet"), packaged, out)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	if err := publishSources(o.version, archives, out); err != nil {
		return err
	}
	if err := o.writeInstaller(out); err != nil {
		return err
	}
	if repository != "" {
		if err := os.CopyFS(out, os.DirFS(repository)); err != nil {
			return err
		}
	}
	m, err := o.making(context.Background(), arches, imageArches)
	if err != nil {
		return err
	}
	if err := m.writeMaking(out); err != nil {
		return err
	}
	if err := writeSums(out); err != nil {
		return err
	}
	if sizes != "" {
		if err := os.WriteFile(sizes, table(o.version, all), 0o644); err != nil {
			return err
		}
	}
	return exceeded(all)
}

// publishBinary makes the files of one architecture: the binary, compressed, its packages, and a bill of materials of each.
func (o origin) publishBinary(arch, binary, packaged, out string) (size, error) {
	s, err := measure(arch, binary)
	if err != nil {
		return s, err
	}
	contents, err := sbom.Of(arch, binary)
	if err != nil {
		return s, err
	}
	if err := o.checkToolchain(binary, contents.Toolchains()); err != nil {
		return s, err
	}
	file := filepath.Join(out, "rivulet-"+o.version+"-linux-"+arch+".zst")
	if err := compress(binary, file); err != nil {
		return s, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return s, err
	}
	s.compressed = info.Size()
	fmt.Printf("%s: %.1f MB, unpacked %.1f MB\n", file, mb(s.compressed), mb(s.elf))
	files := []string{file}
	if packaged != "" {
		packages, err := filepath.Glob(filepath.Join(packaged, arch, "rivulet*.[dr][ep][bm]")) // .deb, .rpm
		if err != nil || len(packages) == 0 {
			return s, errors.Join(err, fmt.Errorf("%s has no packages for %s; make release", packaged, arch))
		}
		for _, f := range packages {
			to := filepath.Join(out, filepath.Base(f))
			if err := os.Link(f, to); err != nil {
				return s, err
			}
			files = append(files, to)
		}
	}
	built, err := o.builtAt()
	if err != nil {
		return s, err
	}
	for _, f := range files {
		if err := contents.Write(f, o.version, built, nil); err != nil {
			return s, err
		}
	}
	return s, nil
}

// writeInstaller writes install.sh with what it has to know: the public root keys, the lowest generation of a signing key,
// and where releases are published.
func (o origin) writeInstaller(out string) error {
	script, err := os.ReadFile("image/package/install.sh")
	if err != nil {
		return err
	}
	script = []byte(strings.Replace(string(script), "\nROOT_KEYS=\nMIN_GENERATION=\nRELEASES=\n", "\nROOT_KEYS="+o.rootKeys+"\nMIN_GENERATION="+o.generation+"\nRELEASES="+o.releases+"\n", 1))
	return os.WriteFile(filepath.Join(out, "install.sh"), script, 0o755)
}

// writeSums writes SHA256SUMS, with all files of the folder.
func writeSums(out string) error {
	all, err := sumsOf(out)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, f := range all {
		fmt.Fprintf(&text, "%s  %s\n", f.sum, f.name)
	}
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(text.String()), 0o644)
}

// measure checks that the binary is static and of its folder's architecture.
func measure(arch, path string) (size, error) {
	f, err := elf.Open(path)
	if err != nil {
		return size{}, fmt.Errorf("%w; make build ARCH=%s", err, arch)
	}
	defer f.Close()
	if f.Machine != machines[arch] {
		return size{}, fmt.Errorf("%s is for %v; make build ARCH=%s", path, f.Machine, arch)
	}
	s := size{arch: arch}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			return size{}, fmt.Errorf("%s is not static: it has a %v segment", path, p.Type)
		}
	}
	for name, to := range map[string]*int64{".text": &s.text, ".rodata": &s.rodata, ".gopclntab": &s.lines} {
		if sec := f.Section(name); sec != nil {
			*to = int64(sec.Size)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return size{}, err
	}
	s.elf = info.Size()
	goarch := strings.TrimSuffix(arch, "v7")
	if info, err = os.Stat("image/bundle/bundle_linux_" + goarch + ".tar.zst"); err != nil {
		return size{}, fmt.Errorf("%w; make build ARCH=%s", err, arch)
	}
	s.bundle = info.Size()
	return s, nil
}

// compress writes the same bytes with any number of processors. The window of 128 MB is the largest that zstd and
// rivulet upgrade accept by default.
func compress(from, to string) error {
	cmd := exec.Command("zstd", "--ultra", "-22", "--long=27", "-T0", "-q", "-f", from, "-o", to)
	cmd.Stderr = os.Stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w; apt-get install zstd", err)
	}
	return err
}
