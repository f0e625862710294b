// Package slots selects which of the two root slots of a device image boots, and writes update bundles to the slot that
// does not run (docs/design/image.md).
//
//	Clear ──▶ Fill ──▶ Arm ──▶ (restart) ──▶ Accept      the other slot boots from now on
//	                                   └───▶ Reject      the old one does
//
// It reads the initrd's files in /run/rivulet-image, and the boot partition; it alone writes the other slot's partition
// and boot folder, slot.cfg, systemd-boot's entries and syslinux's one-time entry. Power cut: before and after each
// write an intact slot boots, and each step may be repeated. Failure: an error with a cure.
package slots

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"rivulet/image/device/layout"
)

// Boot is the boot partition. Each change is on the disk when it returns.
type Boot interface {
	// List returns the names in a folder; a missing one is empty.
	List(dir string) ([]string, error)
	Read(name string) ([]byte, error)
	// Write creates a file, and its folder; a power cut may leave a part of it.
	Write(name string, content []byte) error
	// Overwrite changes a file of one sector in place: a power cut leaves old or new content.
	Overwrite(name string, content []byte) error
	// OverwriteEnd does so with a file's last sectors; for each a power cut leaves old or new content.
	OverwriteEnd(name string, content []byte) error
	Rename(from, to string) error
	// Remove removes a file or a whole folder; a missing one is no error.
	Remove(name string) error
}

// entries is systemd-boot's folder; only PCs have it.
const entries = "loader/entries"

// kept is the path of a slot's entry in its folder until it is armed.
func kept(s layout.Slot) string { return path.Join(s.String(), layout.EntryFile) }

// Clear removes everything by which a loader could start another slot, and the flags of earlier attempts: from now on
// only running boots.
func Clear(b Boot, running layout.Slot) error {
	if err := b.Remove(path.Join(running.Other().String(), layout.Good)); err != nil {
		return err
	}
	if err := settle(b, running); err != nil {
		return err
	}
	return removeEntries(b, running.Other())
}

// settle makes loaders without counters start one slot, and try none.
func settle(b Boot, s layout.Slot) error {
	if err := once(b, 0); err != nil {
		return err
	}
	for _, x := range []layout.Slot{layout.A, layout.B} {
		if err := b.Remove(path.Join(x.String(), layout.OnceFile)); err != nil {
			return err
		}
	}
	return choose(b, layout.Choice{Load: s, Good: s})
}

// Arm makes the loader try a slot, for a limited number of failed starts.
func Arm(b Boot, from, to layout.Slot) error {
	trial := layout.Choice{Load: to, Good: from, Try: to, Tries: layout.Tries}
	raw, err := b.Read(layout.SyslinuxFile)
	if err == nil && layout.HasOnce(raw) {
		// After one successful start the loader keeps it (the initrd's choice).
		trial.Load = from
		if err := b.Write(path.Join(to.String(), layout.OnceFile), layout.Once(to)); err != nil {
			return err
		}
	}
	if err := choose(b, trial); err != nil {
		return err
	}
	if trial.Load == from {
		if err := once(b, to); err != nil {
			return err
		}
	}
	entry, err := b.Read(kept(to))
	if err != nil {
		if _, pi := b.Read("config.txt"); pi == nil {
			return nil // the Pi's firmware reads slot.cfg
		}
		return fmt.Errorf("slots: the entry of slot %s is not there: %w; begin the upgrade anew", to, err)
	}
	if err := removeEntries(b, to); err != nil {
		return err
	}
	// Not .conf before it is complete: the loader reads files with that suffix.
	tmp := path.Join(entries, "rivulet-"+to.String()+".new")
	if err := b.Write(tmp, entry); err != nil {
		return err
	}
	return b.Rename(tmp, path.Join(entries, layout.EntryName(to, true)))
}

// Accept makes a tried slot the one that boots.
func Accept(b Boot, slot layout.Slot) error {
	if err := settle(b, slot); err != nil {
		return err
	}
	names, err := entriesOf(b, slot)
	if err != nil {
		return err
	}
	good := layout.EntryName(slot, false)
	for _, n := range names {
		if n != good {
			if err := b.Rename(path.Join(entries, n), path.Join(entries, good)); err != nil {
				return err
			}
			break
		}
	}
	return b.Write(path.Join(slot.String(), layout.Good), []byte("good\n"))
}

// Reject makes the earlier slot the one that boots, and disables the other.
func Reject(b Boot, back layout.Slot) error { return Clear(b, back) }

// choose writes slot.cfg if it differs.
func choose(b Boot, c layout.Choice) error {
	raw, err := b.Read(layout.ChoiceFile)
	if err != nil {
		return b.Write(layout.ChoiceFile, c.Encode(loader(b, nil)))
	}
	want := c.Encode(loader(b, raw))
	if string(raw) == string(want) {
		return nil
	}
	return b.Overwrite(layout.ChoiceFile, want)
}

// once makes syslinux start a slot at the next boot only, or clears that. Other loaders have no such file.
func once(b Boot, s layout.Slot) error {
	raw, err := b.Read(layout.SyslinuxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another loader
	}
	if err != nil {
		return err
	}
	if !layout.HasOnce(raw) || bytes.HasSuffix(raw, layout.Once(s)) {
		return nil
	}
	return b.OverwriteEnd(layout.SyslinuxFile, layout.Once(s))
}

func loader(b Boot, raw []byte) layout.Loader {
	if strings.HasPrefix(string(raw), "DEFAULT") {
		return layout.Syslinux
	}
	if _, err := b.Read("config.txt"); err == nil {
		return layout.PiFirmware
	}
	return layout.Syslinux
}

func entriesOf(b Boot, s layout.Slot) (out []string, err error) {
	names, err := b.List(entries)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if is, _, ok := entry(n); ok && is == s {
			out = append(out, n)
		}
	}
	return out, nil
}

// entry parses the name of an entry: rivulet-b.conf, rivulet-b+2-1.conf. FAT does not preserve case.
func entry(name string) (s layout.Slot, tries int, ok bool) {
	rest, is := strings.CutPrefix(strings.ToLower(name), "rivulet-")
	rest, conf := strings.CutSuffix(rest, ".conf")
	if !is || !conf || rest == "" || !layout.Slot(rest[0]).Valid() {
		return 0, 0, false
	}
	s, rest = layout.Slot(rest[0]), rest[1:]
	if rest == "" {
		return s, -1, true
	}
	left, _, _ := strings.Cut(strings.TrimPrefix(rest, "+"), "-")
	if n, err := strconv.Atoi(left); err == nil && rest[0] == '+' {
		return s, n, true
	}
	return s, -1, true
}

func removeEntries(b Boot, s layout.Slot) error {
	names, err := entriesOf(b, s)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := b.Remove(path.Join(entries, n)); err != nil {
			return err
		}
	}
	return nil
}

// nextVersion is above that of all entries: systemd-boot selects the highest.
func nextVersion(b Boot) (int, error) {
	names, err := b.List(entries)
	if err != nil {
		return 0, err
	}
	top := 0
	for _, n := range names {
		if _, _, ok := entry(n); !ok {
			continue
		}
		raw, err := b.Read(path.Join(entries, n))
		if err != nil {
			return 0, err
		}
		top = max(top, EntryVersion(string(raw)))
	}
	return top + 1, nil
}

// EntryVersion is the version number in an entry; 0 is none.
func EntryVersion(text string) int {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "version" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}

// ErrNoImage is returned if no device image runs.
var ErrNoImage = errors.New("slots: this system was not written by rivulet flash")
