package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"rivulet/image/filesum"
)

// libcLock has the C library of each architecture, which is linked into rivulet and runc: ARCH SHA256-of-libc.a PACKAGE VERSION.
const libcLock = "image/release/libc.lock"

const libcHead = `# The C library that is linked statically, of the machine that builds: architecture, SHA-256 of libc.a, package, version.
# Written by make libc-lock; a release with another one is refused. See docs/design/release.md.
`

// compilers are Debian's, by the architecture that they build for.
var compilers = map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc", "armv7": "arm-linux-gnueabihf-gcc"}

// libc returns the C library that the compiler of an architecture links statically, and its SHA-256. There is none without
// the compiler: exec.ErrNotFound.
func libc(ctx context.Context, arch string) (file, sum string, err error) {
	out, err := exec.CommandContext(ctx, compilers[arch], "-print-file-name=libc.a").Output()
	if err != nil {
		return "", "", fmt.Errorf("the C library for %s: %w", arch, err)
	}
	// A compiler that does not find it says its bare name.
	if file, err = filepath.EvalSymlinks(strings.TrimSpace(string(out))); err == nil {
		sum, _, err = filesum.SHA256(file)
	}
	if err != nil {
		return "", "", fmt.Errorf("the C library for %s: %w", arch, err)
	}
	return file, sum, nil
}

// checkLibc demands that the C library of each architecture is the one of the lock. With early, a compiler that is not
// there yet is left to the check after the build, which is done for all. A draft may have any.
func (o origin) checkLibc(ctx context.Context, arches []string, early bool) error {
	if o.draft {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(o.tree, libcLock))
	if err != nil {
		return fmt.Errorf("%w; make libc-lock, and commit it%s", err, orDraft)
	}
	locked := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "#" {
			locked[f[0]] = f[1:]
		}
	}
	var errs []error
	for _, arch := range arches {
		file, sum, err := libc(ctx, arch)
		switch want := locked[arch]; {
		case early && errors.Is(err, exec.ErrNotFound):
		case err != nil:
			errs = append(errs, fmt.Errorf("%w; make deps ARCH=%s%s", err, arch, orDraft))
		case want == nil:
			errs = append(errs, fmt.Errorf("%s has no C library for %s; make libc-lock, read its diff and commit it%s", libcLock, arch, orDraft))
		case sum != want[0]:
			errs = append(errs, fmt.Errorf("%s has SHA-256 %s, and %s has %s, of %s %s; install that version on this machine, or: make libc-lock, read its diff, commit it and make check-all%s",
				file, sum, libcLock, want[0], want[1], want[2], orDraft))
		}
	}
	return errors.Join(errs...)
}

// writeLibc writes the lock with the C libraries of this machine.
func (o origin) writeLibc(ctx context.Context, arches []string) error {
	var out strings.Builder
	out.WriteString(libcHead)
	for _, arch := range arches {
		file, sum, err := libc(ctx, arch)
		if err != nil {
			return fmt.Errorf("%w; make deps ARCH=%s", err, arch)
		}
		owner, err := exec.CommandContext(ctx, "dpkg-query", "--search", file).Output()
		if err != nil {
			return fmt.Errorf("no package has %s: %w; build on Debian", file, err)
		}
		name, _, _ := strings.Cut(string(owner), ": ")
		version, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat=${Package} ${Version}", name).Output()
		if err != nil {
			return fmt.Errorf("dpkg-query --show %s: %w", name, err)
		}
		fmt.Fprintf(&out, "%s %s %s\n", arch, sum, version)
	}
	return os.WriteFile(filepath.Join(o.tree, libcLock), []byte(out.String()), 0o644)
}
