package flash

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is a disk of this machine, or a file that is written like one.
type Disk struct {
	Path      string `json:"path"`
	Model     string `json:"model,omitempty"`
	Size      int64  `json:"size"`
	Removable bool   `json:"removable"`
	// Content lists its partitions and file systems, as far as udev knows them; empty for none.
	Content string `json:"content,omitempty"`
	// Refused is why it is not written, with a cure; empty if it may be.
	Refused string `json:"refused,omitempty"`
	file    bool
	dev     string // major:minor
}

// Internal reports whether it may be one of those that a machine works with: writing it needs more than a yes.
func (d Disk) Internal() bool { return !d.Removable && !d.file }

// Machine is the source of disks: the kernel's file systems, and udev's for what is on them.
type Machine struct {
	Sys  fs.FS // /sys
	Proc fs.FS // /proc
	Udev fs.FS // /run/udev/data
}

func Here() Machine {
	return Machine{Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Udev: os.DirFS("/run/udev/data")}
}

// notDisks are block devices that are neither card nor disk.
var notDisks = []string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "mtdblock", "zd"}

// List returns the machine's disks, by name.
func (m Machine) List() ([]Disk, error) {
	entries, err := fs.ReadDir(m.Sys, "block")
	if err != nil {
		return nil, fmt.Errorf("flash: disks cannot be listed: %w; is /sys mounted?", err)
	}
	used, err := m.uses()
	if err != nil {
		return nil, err
	}
	var out []Disk
	for _, e := range entries {
		name := e.Name()
		if slices.ContainsFunc(notDisks, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		// Leaves out the boot areas of eMMC, and card readers without a card.
		if d := m.disk(name, used); d.Size > 0 && !strings.Contains(name, "boot") && !strings.HasSuffix(name, "rpmb") {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Disk) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// Disk is the one at a path, which may be a link such as those in /dev/disk/by-id.
func (m Machine) Disk(path string) (Disk, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Disk{}, disk("%w; see the disks there are: rivulet flash --list", err)
	}
	if fi.Mode().IsRegular() {
		return Disk{Path: path, Model: "a file", Size: fi.Size(), file: true}, nil
	}
	if fi.Mode()&os.ModeDevice == 0 || fi.Mode()&os.ModeCharDevice != 0 {
		return Disk{}, disk("%s is no disk; see the disks there are: rivulet flash --list", path)
	}
	dev, err := deviceNumber(path)
	if err != nil {
		return Disk{}, disk("%s: %w", path, err)
	}
	return m.byNumber(path, dev)
}

func deviceNumber(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// byNumber is the disk with a device number; a partition is refused.
func (m Machine) byNumber(path, dev string) (Disk, error) {
	used, err := m.uses()
	if err != nil {
		return Disk{}, err
	}
	entries, err := fs.ReadDir(m.Sys, "block")
	if err != nil {
		return Disk{}, fmt.Errorf("flash: disks cannot be listed: %w; is /sys mounted?", err)
	}
	for _, e := range entries {
		name := e.Name()
		if m.text("block", name, "dev") == dev {
			d := m.disk(name, used)
			if slices.ContainsFunc(notDisks, func(p string) bool { return strings.HasPrefix(name, p) }) {
				d.Refused = "it is no card and no disk; see the disks there are: rivulet flash --list"
			}
			return d, nil
		}
		for _, part := range m.partitions(name) {
			if m.text("block", name, part, "dev") == dev {
				return Disk{}, disk("%s is a partition of /dev/%s, and an image is a whole disk; use /dev/%s", path, name, name)
			}
		}
	}
	return Disk{}, disk("%s is not known to the kernel as a disk; see the disks there are: rivulet flash --list", path)
}

type use struct{ what, cure string }

// disk describes an entry of /sys/block, and whether it may be written.
func (m Machine) disk(name string, used map[string]use) Disk {
	d := Disk{Path: "/dev/" + strings.ReplaceAll(name, "!", "/"), dev: m.text("block", name, "dev")}
	sectors, _ := strconv.ParseInt(m.text("block", name, "size"), 10, 64)
	d.Size = sectors * sector
	d.Removable = m.text("block", name, "removable") == "1" || m.text("block", name, "device", "type") == "SD" || m.usb(name)
	d.Model = strings.TrimSpace(m.text("block", name, "device", "vendor") + " " + m.text("block", name, "device", "model"))
	if strings.HasPrefix(d.Model, "0x") { // virtio's vendor is a number
		d.Model = ""
	}
	if d.Model == "" {
		d.Model = m.text("block", name, "device", "name")
	}
	parts := append([]string{""}, m.partitions(name)...)
	for _, part := range parts {
		at := filepath.ToSlash(filepath.Join("block", name, part))
		shown := d.Path
		if part != "" {
			shown = "/dev/" + strings.ReplaceAll(part, "!", "/")
		}
		if holders, err := fs.ReadDir(m.Sys, at+"/holders"); err == nil && len(holders) > 0 {
			u := m.held(holders[0].Name(), used)
			d.refuse(u.what, shown, u.cure)
		}
		for _, key := range []string{m.text(at, "dev"), shown} {
			if u, ok := used[key]; ok && key != "" {
				d.refuse(u.what, shown, u.cure)
			}
		}
	}
	if m.text("block", name, "ro") == "1" {
		d.refuse("%s is read-only", d.Path, "look for the lock at the side of the card or its adapter")
	}
	if size := m.text("block", name, "queue", "logical_block_size"); size != "" && size != strconv.Itoa(sector) {
		d.refuse("%s has sectors of "+size+" bytes, and an image is for those of 512", d.Path, "choose another disk, or another USB adapter; some NVMe disks can be given sectors of 512 bytes (nvme format)")
	}
	d.Content = m.content(name)
	return d
}

// content lists the partitions of a disk, or its file system if it has none.
func (m Machine) content(name string) string {
	const most = 6
	var out []string
	for _, part := range m.partitions(name) {
		sectors, _ := strconv.ParseInt(m.text("block", name, part, "size"), 10, 64)
		out = append(out, strings.TrimSpace(part+" "+Bytes(sectors*sector)+" "+m.kind(m.text("block", name, part, "dev"))))
	}
	if len(out) == 0 {
		return m.kind(m.text("block", name, "dev"))
	}
	if n := len(out) - most; n > 0 {
		out = append(out[:most], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(out, ", ")
}

// kind is the file system of a device and its label, by udev's database; empty if udev knows neither.
func (m Machine) kind(dev string) string {
	if m.Udev == nil || dev == "" {
		return ""
	}
	raw, _ := fs.ReadFile(m.Udev, "b"+dev) // without udev nothing is known
	known := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			known[key] = value
		}
	}
	kind := known["E:ID_FS_TYPE"]
	if label := cmp.Or(known["E:ID_FS_LABEL"], known["E:ID_PART_ENTRY_NAME"]); label != "" {
		kind += fmt.Sprintf(" %.40q", label)
	}
	return strings.TrimSpace(kind)
}

// refuse keeps the most serious reason: that the system runs from it.
func (d *Disk) refuse(what, shown, cure string) {
	if d.Refused == "" || strings.HasPrefix(what, systemRuns) {
		d.Refused = fmt.Sprintf(what, shown) + "; " + cure
	}
}

const systemRuns = "the system runs from"

// held is the use of the devices that are on top of a device: LVM, RAID, encryption.
func (m Machine) held(holder string, used map[string]use) use {
	for range 8 { // they may be stacked
		if u, ok := used[m.text("block", holder, "dev")]; ok {
			return use{u.what, u.cure}
		}
		next, err := fs.ReadDir(m.Sys, "block/"+holder+"/holders")
		if err != nil || len(next) == 0 {
			break
		}
		holder = next[0].Name()
	}
	return use{"%s is part of " + holder + " (LVM, RAID or encryption)", "close that first, or choose another disk"}
}

func (m Machine) partitions(name string) (out []string) {
	entries, _ := fs.ReadDir(m.Sys, "block/"+name)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) && m.text("block", name, e.Name(), "partition") != "" {
			out = append(out, e.Name())
		}
	}
	return out
}

func (m Machine) text(path ...string) string {
	raw, err := fs.ReadFile(m.Sys, strings.Join(path, "/"))
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(raw)), " ")
}

// usb reports whether the disk is on USB: many sticks and all card readers there report themselves as fixed.
func (m Machine) usb(name string) bool {
	link, err := fs.ReadLink(m.Sys, "block/"+name)
	return err == nil && strings.Contains(link, "/usb")
}
