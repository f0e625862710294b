package main

import (
	"bytes"
	"compress/gzip"
	"debug/pe"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rivulet/image/device/card"
	"rivulet/image/device/layout"
	"rivulet/image/device/tree"
)

// configPi is the firmware's configuration. It has no gpu_mem: the smallest value requires other firmware files.
const configPi = `# Rivulet on Raspberry Pi 3, 4 and 5. Which slot starts is in slot.cfg.
arm_64bit=1
enable_uart=1
upstream_kernel=1
disable_overscan=1
kernel=kernel8.img
initramfs initrd followkernel
include slot.cfg
`

const syslinuxPC = `SERIAL 0 115200
PROMPT 0
TIMEOUT 1
INCLUDE /slot.cfg
INCLUDE /a/entry.cfg
INCLUDE /b/entry.cfg
`

const entryPC = "LABEL @SLOT@\n LINUX /@SLOT@/linux\n INITRD /@SLOT@/initrd\n APPEND " + layout.CommandPC + "\n"

const loaderPC = "title Rivulet @SLOT@\nsort-key rivulet\nversion @VERSION@\nlinux /@SLOT@/linux\ninitrd /@SLOT@/initrd\noptions " + layout.CommandPC + "\n"

const example = `# Optional. A copy of this file named rivulet.yaml is read at the first start; see: rivulet docs firstboot.
# name: shelf-1
`

// boot makes the FAT partition's tree: the loader, and slot a.
func (j *job) boot() error {
	add := j.bootPC
	if j.arch == "arm64" {
		add = j.bootPi
	}
	if err := add(); err != nil {
		return err
	}
	for _, f := range layout.BootFiles[j.arch] {
		if err := copyFile(j.in(f.Root), filepath.Join(j.fat, f.Boot), 0o644); err != nil {
			return err
		}
	}
	// The bundle has the slot's folder unchanged; on the FAT partition it is filled in.
	err := each(j.slot, func(rel string, info fs.FileInfo) error {
		if info.IsDir() {
			return nil
		}
		raw, err := os.ReadFile(filepath.Join(j.slot, rel))
		if err != nil {
			return err
		}
		text, to := string(raw), filepath.Join(j.fat, layout.A.String(), rel)
		if layout.HasSlot(rel) {
			text = layout.Fill(text, layout.A, 1)
		}
		if rel == layout.EntryFile {
			to = filepath.Join(j.fat, "loader/entries", layout.EntryName(layout.A, false))
		}
		return put(to, text, 0o644)
	})
	if err != nil {
		return err
	}
	return errors.Join(put(filepath.Join(j.fat, layout.A.String(), layout.Good), "good\n", 0o644),
		put(filepath.Join(j.fat, "rivulet.yaml.example"), example, 0o644))
}

var first = layout.Choice{Load: layout.A, Good: layout.A}

func (j *job) bootPC() error {
	if err := os.Rename(filepath.Join(j.work, "vmlinuz"), filepath.Join(j.slot, "linux")); err != nil {
		return err
	}
	return errors.Join(putAll(map[string]string{
		filepath.Join(j.slot, layout.SyslinuxEntry):   entryPC,
		filepath.Join(j.slot, layout.EntryFile):       loaderPC,
		filepath.Join(j.fat, "loader/loader.conf"):    "timeout 0\nconsole-mode keep\neditor no\n",
		filepath.Join(j.fat, "syslinux/syslinux.cfg"): syslinuxPC,
		filepath.Join(j.fat, "b/entry.cfg"):           "# empty until the first update\n",
		filepath.Join(j.fat, layout.ChoiceFile):       string(first.Encode(layout.Syslinux)),
	}))
}

// checkPC checks that a PC with Secure Boot will start each program of UEFI: the firmware trusts Microsoft, which has
// signed the shim; the shim, and by it the loader, trusts Debian.
func (j *job) checkPC() error {
	var errs []error
	for name, by := range map[string]string{layout.Shim: "Microsoft", layout.UEFI: debianCA, "a/linux": debianCA} {
		raw, err := os.ReadFile(filepath.Join(j.fat, name))
		if err != nil {
			return err
		}
		switch signature, err := signature(raw); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		case !bytes.Contains(signature, []byte(by)):
			errs = append(errs, fmt.Errorf("%s has no signature of %s", name, by))
		case name == layout.Shim && !bytes.Contains(raw, []byte(debianCA)):
			errs = append(errs, fmt.Errorf("%s does not trust %s", name, debianCA))
		}
	}
	return errors.Join(errs...)
}

const debianCA = "Debian Secure Boot CA"

// signature returns the table of signatures of a program for UEFI.
func signature(raw []byte) ([]byte, error) {
	f, err := pe.NewFile(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok || f.Machine != pe.IMAGE_FILE_MACHINE_AMD64 {
		return nil, errors.New("no program for PCs of 64 bits")
	}
	// The one entry whose address is one in the file.
	d := h.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_SECURITY]
	if begin, end := int64(d.VirtualAddress), int64(d.VirtualAddress)+int64(d.Size); d.Size > 0 && end <= int64(len(raw)) {
		return raw[begin:end], nil
	}
	return nil, errors.New("not signed")
}

func (j *job) bootPi() error {
	var errs []error
	trees, _ := filepath.Glob(j.in("usr/lib/modules", j.kernel, "dtb/broadcom/*.dtb"))
	if len(trees) == 0 {
		return fmt.Errorf("the kernel has no device trees for the Raspberry Pi")
	}
	for _, t := range trees {
		errs = append(errs, copyFile(t, filepath.Join(j.slot, filepath.Base(t)), 0o644))
	}
	if err := errors.Join(append(errs, j.newerPi5())...); err != nil {
		return err
	}
	kernel, err := os.ReadFile(filepath.Join(j.work, "vmlinuz"))
	if err != nil {
		return err
	}
	// The firmware decompresses it.
	var packed strings.Builder
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = z.Write(kernel)
	if err = errors.Join(err, z.Close()); err != nil {
		return err
	}
	return putAll(map[string]string{
		filepath.Join(j.slot, "kernel8.img"):      packed.String(),
		filepath.Join(j.slot, layout.CommandFile): layout.CommandPi + "\n",
		filepath.Join(j.fat, "config.txt"):        configPi,
		filepath.Join(j.fat, layout.ChoiceFile):   string(first.Encode(layout.PiFirmware)),
	})
}

// newerPi5 makes the overlay that the firmware applies to the Raspberry Pi 5's device tree if the chip is of the newer
// revision (2 GB, 16 GB, boards from 1.1 on): its pins are elsewhere, and without the overlay the kernel stops early.
// Debian's kernel has a second tree instead, which the firmware does not load.
func (j *job) newerPi5() error {
	from, err := readTree(filepath.Join(j.slot, card.Pi5))
	if err != nil {
		return err
	}
	to, err := readTree(filepath.Join(j.slot, card.NewerPi5))
	if err != nil {
		return err
	}
	o, err := tree.Overlay(from, to)
	if err != nil {
		return fmt.Errorf("%s of this kernel: %w", card.NewerPi5, err)
	}
	return putAll(map[string]string{
		filepath.Join(j.slot, card.NewerOverlay): string(o.Encode()),
		// Without this file the firmware takes overlays from outside of the slot.
		filepath.Join(j.slot, card.Overlays, "README"): "For the kernel beside this folder; see: rivulet docs image.\n",
	})
}

func readTree(path string) (*tree.Node, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w; packages.list names a kernel for the Raspberry Pi 5", err)
	}
	n, err := tree.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
