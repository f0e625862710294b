package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/device/layout"
	"rivulet/image/filesum"
	"rivulet/systemd"
)

// checkMade asks each binary what it is, and compares the ones in the images and bundles with it.
func (o origin) checkMade(ctx context.Context, in string, arches, imageArches []string) error {
	var errs []error
	for _, arch := range arches {
		errs = append(errs, o.checkBinary(ctx, arch, filepath.Join(in, arch, "rivulet")))
	}
	for _, arch := range imageArches {
		name := filepath.Join(in, "image", "rivulet-"+o.version+"-"+arch)
		if err := o.checkImage(ctx, name, filepath.Join(in, arch, "rivulet")); err != nil {
			errs = append(errs, fmt.Errorf("%w; make image ARCH=%s%s and make test-image ARCH=%s%s, or IMAGES= for a release without images", err, arch, o.asDraft(), arch, o.asDraft()))
		}
	}
	return errors.Join(errs...)
}

// asDraft is what a cure's make needs to make a draft's parts.
func (o origin) asDraft() string {
	if o.draft {
		return " DRAFT=1"
	}
	return ""
}

// emulators run programs of other architectures: Debian's names, and upstream's.
var emulators = map[string][]string{
	"amd64": {"qemu-x86_64-static", "qemu-x86_64"}, "arm64": {"qemu-aarch64-static", "qemu-aarch64"}, "armv7": {"qemu-arm-static", "qemu-arm"},
}

// program returns the command that runs a binary of the architecture here.
func program(arch, path string) ([]string, error) {
	if strings.TrimSuffix(arch, "v7") == runtime.GOARCH {
		return []string{path}, nil
	}
	for _, name := range emulators[arch] {
		if emulator, err := exec.LookPath(name); err == nil {
			return []string{emulator, path}, nil
		}
	}
	return nil, fmt.Errorf("nothing here runs a program for %s, so nobody can ask %s what it is; make deps ARCH=%s", arch, path, arch)
}

// checkBinary compares what the binary says with what is linked into it by the Makefile.
func (o origin) checkBinary(ctx context.Context, arch, path string) error {
	again := "; make build ARCH=" + arch + o.asDraft()
	command, err := program(arch, path)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // emulated, on a busy machine
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], "version", "-o", "json")...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s does not say what it is: %w: %s%s", path, err, strings.TrimSpace(errOut.String()), again)
	}
	var parts []struct{ Name, Version string }
	if err := json.Unmarshal(out, &parts); err != nil {
		return fmt.Errorf("%s does not say what it is: %w%s", path, err, again)
	}
	built, err := o.builtAt()
	if err != nil {
		return err
	}
	says := map[string]string{}
	for _, p := range parts {
		says[p.Name] = p.Version
	}
	var errs []error
	for _, want := range [][2]string{{"rivulet", o.version}, {"built", built.Format(time.RFC3339)}, {"root keys", cmp.Or(o.rootKeys, "none")}, {"key generation", o.generation}} {
		if got := says[want[0]]; got != want[1] {
			errs = append(errs, fmt.Errorf("%s says %s %q, and %q is released%s", path, want[0], got, want[1], again))
		}
	}
	return errors.Join(errs...)
}

func (o origin) builtAt() (time.Time, error) {
	seconds, err := strconv.ParseInt(o.built, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("BUILD_TIME=%s is no time; leave it out", o.built)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// checkImage compares the program in the image's root with the binary, and the root and version of the bundle with those
// of the image. name is the path without the ending.
func (o origin) checkImage(ctx context.Context, name, binary string) error {
	dir, err := os.MkdirTemp("", "rivulet-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, layout.RootName)
	manifest, err := bundled(name+".bundle", root)
	if err != nil {
		return err
	}
	if manifest.Version != o.version {
		return fmt.Errorf("%s.bundle is of version %q, and %q is released", name, manifest.Version, o.version)
	}
	sum, size, err := filesum.SHA256(root)
	if err != nil {
		return err
	}
	inImage, err := rootSum(name+".img.zst", size)
	if err != nil {
		return err
	}
	if inImage != sum {
		return fmt.Errorf("the system in %s.bundle is another one than in its .img.zst", name)
	}
	want, _, err := filesum.SHA256(binary)
	if err != nil {
		return err
	}
	inside := strings.TrimPrefix(systemd.Binary, "/")
	cmd := exec.CommandContext(ctx, "unsquashfs", "-cat", root, inside)
	hash := sha256.New()
	var errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = hash, &errOut
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("%w; make image-deps", err)
		}
		return fmt.Errorf("%s.img.zst has no %s that can be read: %w: %s", name, inside, err, strings.TrimSpace(errOut.String()))
	}
	if fmt.Sprintf("%x", hash.Sum(nil)) != want {
		return fmt.Errorf("the rivulet in %s.img.zst is another one than %s", name, binary)
	}
	if err := o.checkImageSources(ctx, root, manifest.Arch); err != nil {
		return fmt.Errorf("the sources of %s.img.zst: %w", name, err)
	}
	return nil
}

// bundled writes the root of a bundle to a file.
func bundled(bundle, root string) (m layout.Manifest, err error) {
	f, err := os.Open(bundle)
	if err != nil {
		return m, err
	}
	defer f.Close()
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if err != nil {
			return m, fmt.Errorf("%s has no %s: %w", bundle, layout.RootName, err)
		}
		switch h.Name {
		case layout.ManifestName:
			if err := json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&m); err != nil {
				return m, fmt.Errorf("%s: %w", bundle, err)
			}
		case layout.RootName:
			out, err := os.Create(root)
			if err != nil {
				return m, err
			}
			_, err = io.Copy(out, r)
			return m, errors.Join(err, out.Close())
		}
	}
}

// rootSum is the SHA-256 of the first bytes of the first root partition of an image.
func rootSum(image string, size int64) (string, error) {
	f, err := os.Open(image)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return "", err
	}
	defer z.Close()
	hash := sha256.New()
	if _, err = io.CopyN(io.Discard, z, layout.Start+layout.BootSize); err == nil {
		_, err = io.CopyN(hash, z, size)
	}
	if err != nil {
		return "", fmt.Errorf("%s ends before its system does: %w", image, err)
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}
