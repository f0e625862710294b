package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"rivulet/image/device/files"
	"rivulet/image/sources"
	"rivulet/systemd"
)

// ours adds the files that are not Debian's to the root: the product, its units (package systemd, as `rivulet install`)
// and the files of image/device/files.
func (j *job) ours() error {
	if err := copyFile(j.binary, j.in(systemd.Binary), 0o755); err != nil {
		return fmt.Errorf("%w; make build for %s first", err, j.arch)
	}
	const docs = "usr/share/doc/rivulet"
	list, err := sources.OfImage(".", j.version, j.arch)
	errs := []error{err, put(j.in(docs, "SOURCES"), string(list), 0o644), copyFile("NOTICE", j.in(docs, "NOTICE"), 0o644), copyFile("image/package/copyright", j.in(docs, "copyright"), 0o644)}
	for _, l := range systemd.Links {
		errs = append(errs, os.Symlink(l.To, j.in(l.Path)))
	}
	for _, f := range systemd.ImageFiles() {
		errs = append(errs, put(j.in(f.Path), f.Content, 0o644))
	}
	errs = append(errs, fs.WalkDir(files.Root, "root", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(files.Root, name)
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(string(raw), "#!") {
			mode = 0o755
		}
		return put(j.in(strings.TrimPrefix(name, "root/")), string(raw), mode)
	}),
		put(j.in("etc/rivulet-image"), fmt.Sprintf("version=%s\narch=%s\nkernel=%s\n", j.version, j.arch, j.kernel), 0o644),
		// With an empty machine-id systemd would assume a first boot and apply presets: they are applied here, and the
		// initrd makes the id.
		put(j.in("etc/machine-id"), "", 0o444),
		j.units())
	// Marks the steps that systemd repeats after an update as done.
	for _, d := range []string{"etc", "var"} {
		stamp := j.in(d, ".updated")
		errs = append(errs, put(stamp, "", 0o644), os.Chtimes(stamp, time.Time{}, j.epoch))
	}
	return errors.Join(errs...)
}

// masked are units without a use on a device, or that could wait for something that does not exist.
var masked = []string{
	"systemd-hwdb-update.service", "systemd-journal-catalog-update.service", "systemd-firstboot.service",
	"systemd-networkd-wait-online.service", "systemd-networkd-persistent-storage.service", "systemd-remount-fs.service", "systemd-update-done.service",
	"ldconfig.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"modprobe@drm.service", "ssh.socket", "systemd-journal-flush.service",
	"systemd-growfs-root.service", "systemd-boot-random-seed.service",
	"getty@.service", "serial-getty@.service", "console-getty.service", // login needs a key
	"systemd-bless-boot.service", // the update evaluates a slot; reaching a boot target is not enough
}

func (j *job) units() error {
	var errs []error
	for _, u := range masked {
		errs = append(errs, link("/dev/null", j.in("etc/systemd/system", u)))
	}
	return errors.Join(append(errs, run("", "systemctl", "--root="+j.root, "preset-all"),
		run("", "systemctl", "--root="+j.root, "set-default", "multi-user.target"))...)
}
