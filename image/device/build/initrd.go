package main

import (
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

	"rivulet/image/device/files"
)

// initrd packs busybox, the modules that may be needed to read the disk, and init.
func (j *job) initrd() error {
	tree := filepath.Join(j.work, "initrd")
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	var errs []error
	for _, d := range []string{"bin", "dev", "proc", "sys", "run", "root", "fat", "data", "etc/modprobe.d"} {
		errs = append(errs, os.MkdirAll(filepath.Join(tree, d), 0o755))
	}
	for _, applet := range applets() {
		errs = append(errs, link("busybox", filepath.Join(tree, "bin", applet)))
	}
	if err := errors.Join(append(errs, link("bin", filepath.Join(tree, "sbin")), link("usr/lib", filepath.Join(tree, "lib")),
		copyFile(j.in("usr/bin/busybox"), filepath.Join(tree, "bin/busybox"), 0o755),
		put(filepath.Join(tree, "init"), files.Init, 0o755),
		j.modules(tree), settle(tree, j.epoch))...); err != nil {
		return err
	}
	packed, err := os.Create(filepath.Join(j.slot, "initrd"))
	if err != nil {
		return err
	}
	defer packed.Close()
	if err := j.microcode(packed); err != nil {
		return err
	}
	zstd := exec.Command("zstd", "-q", "-15", "-T0", "-c")
	in, err := zstd.StdinPipe()
	if err != nil {
		return err
	}
	zstd.Stdout, zstd.Stderr = packed, os.Stderr
	if err := zstd.Start(); err != nil {
		return err
	}
	if err := errors.Join(writeCPIO(in, tree, j.epoch, 4), in.Close(), zstd.Wait()); err != nil {
		return fmt.Errorf("zstd: %w", err)
	}
	return packed.Close()
}

// microcode writes an archive of its own, before the initrd's: the fixes of both makers' processors, from the root, where
// nothing else reads them. The kernel takes them from there before all else, uncompressed only; processors want them at
// multiples of 16 bytes.
func (j *job) microcode(w io.Writer) error {
	if j.arch != "amd64" {
		return nil
	}
	tree := filepath.Join(j.work, "microcode")
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	for name, from := range map[string]string{"AuthenticAMD.bin": "usr/lib/firmware/amd-ucode", "GenuineIntel.bin": "usr/lib/firmware/intel-ucode"} {
		parts, _ := filepath.Glob(j.in(from, "*"))
		if len(parts) == 0 {
			return fmt.Errorf("%s is empty; packages.list names the packages with microcode", from)
		}
		var all strings.Builder
		for _, p := range parts { // sorted by Glob
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			all.Write(raw)
		}
		if err := errors.Join(put(filepath.Join(tree, "kernel/x86/microcode", name), all.String(), 0o644), j.removeAll(from)); err != nil {
			return err
		}
	}
	return writeCPIO(w, tree, j.epoch, 16)
}

// applets are the programs that init runs.
func applets() []string {
	return []string{"basename", "cat", "chmod", "chroot", "cmp", "cp", "dd", "dirname", "dmesg", "echo", "find", "findfs", "grep", "head", "ls", "mkdir", "modprobe", "mount", "mv",
		"printf", "readlink", "reboot", "rm", "sed", "sh", "sleep", "sort", "switch_root", "sync", "tail", "tr", "umount", "uname", "wc", "xargs", "yes"}
}

// modules copies the listed modules and their dependencies, decompressed, because busybox cannot decompress them.
func (j *job) modules(tree string) error {
	from := j.in("usr/lib/modules", j.kernel)
	to := filepath.Join(tree, "usr/lib/modules", j.kernel)
	raw, err := os.ReadFile(filepath.Join(from, "modules.dep"))
	if err != nil {
		return err
	}
	builtin, err := os.ReadFile(filepath.Join(from, "modules.builtin"))
	if err != nil {
		return err
	}
	names := strings.Fields(files.Modules(j.arch))
	if lost := unknown(names, string(raw), string(builtin)); len(lost) > 0 {
		return fmt.Errorf("this kernel has no drivers called %s: image/device/files/initrd/modules-%s has to say what they are called now", strings.Join(lost, ", "), j.arch)
	}
	for _, m := range pick(string(raw), names) {
		content, err := os.ReadFile(filepath.Join(from, m))
		if err != nil {
			return err
		}
		if plain, packed := strings.CutSuffix(m, ".xz"); packed {
			cmd := exec.Command("xz", "-dc")
			cmd.Stdin = bytes.NewReader(content)
			if content, err = cmd.Output(); err != nil {
				return fmt.Errorf("xz -d %s: %w", m, err)
			}
			m = plain
		}
		if err := put(filepath.Join(to, m), string(content), 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"} {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name), 0o644); err != nil {
			return err
		}
	}
	return run("", "depmod", "-b", tree, j.kernel)
}

// module converts the name or file name of a module to its name.
func module(path string) string {
	name, _, _ := strings.Cut(filepath.Base(strings.TrimSpace(path)), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// unknown returns the names that the kernel has neither as a module nor built in. A misspelled name would otherwise be
// left out without an error, and the disk would not be found.
func unknown(names []string, dep, builtin string) []string {
	known := map[string]bool{}
	for _, list := range []string{dep, builtin} {
		for line := range strings.Lines(list) {
			path, _, _ := strings.Cut(line, ":")
			known[module(path)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return known[module(n)] })
}

// pick returns the files of the named modules and their dependencies, without those that are built in.
func pick(dep string, names []string) []string {
	var all []string
	for line := range strings.Lines(dep) {
		path, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.ContainsFunc(names, func(n string) bool { return module(n) == module(path) }) {
			all = append(append(all, path), strings.Fields(needs)...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// squash packs the root slot.
func (j *job) squash() error {
	// The kernel is on the FAT partition.
	for _, pattern := range []string{"boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"} {
		found, _ := filepath.Glob(j.in(pattern))
		for _, f := range found {
			if err := os.Rename(f, filepath.Join(j.work, "vmlinuz")); err != nil {
				return err
			}
		}
	}
	if err := j.removeAll("boot/System.map-*", "boot/config-*", "boot/initrd*"); err != nil {
		return err
	}
	out := filepath.Join(j.work, "root.squashfs")
	os.Remove(out)
	t := fmt.Sprint(j.epoch.Unix())
	// Owners and modes that the tree does not have when mksquashfs does not run as root.
	args := []string{j.root, out, "-noappend", "-quiet", "-no-progress", "-all-root", "-no-xattrs", "-comp", "zstd", "-Xcompression-level", "15", "-b", "256K",
		"-mkfs-time", t, "-all-time", t, "-p", "etc/shadow m 640 0 42", "-p", "etc/gshadow m 640 0 42"}
	if err := run("", "mksquashfs", args...); err != nil {
		return err
	}
	info, err := os.Stat(out)
	if err == nil && info.Size() > rootLimit {
		err = fmt.Errorf("the root slot is %d MB, of %d at most", info.Size()>>20, rootLimit>>20)
	}
	return err
}

// each walks a tree in a fixed order.
func each(dir string, do func(rel string, info fs.FileInfo) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return do(rel, info)
	})
}
