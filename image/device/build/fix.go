package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/image/device/files"
)

func (j *job) in(path ...string) string { return filepath.Join(append([]string{j.root}, path...)...) }

// unneeded is left out of the image: documentation, and drivers of hardware that is not supported.
var unneeded = []string{
	"usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bug", "usr/share/i18n",
	"usr/lib/udev/hwdb.d", "usr/share/bash-completion", "usr/share/zsh", "usr/include", "usr/share/perl5",
	"var/lib/apt", "var/cache/apt", "var/lib/dpkg",
	"usr/lib/modules/*/kernel/drivers/gpu/drm/amd", "usr/lib/modules/*/kernel/drivers/gpu/drm/nouveau", "usr/lib/modules/*/kernel/drivers/gpu/drm/radeon",
	"usr/lib/modules/*/kernel/drivers/gpu/drm/xe", "usr/lib/modules/*/kernel/drivers/media", "usr/lib/modules/*/kernel/drivers/infiniband", "usr/lib/modules/*/kernel/sound",
	"usr/lib/firmware/rtw88", "usr/lib/firmware/rtw89", "usr/lib/firmware/rtl_bt", "usr/lib/firmware/rtlwifi",
}

// fix replaces the packages' scripts. It runs nothing of the image, which may be for another processor.
func (j *job) fix() error {
	// The copyright files stay: the licences require them.
	docs, _ := filepath.Glob(j.in("usr/share/doc/*/*"))
	for _, d := range docs {
		if filepath.Base(d) != "copyright" {
			if err := os.RemoveAll(d); err != nil {
				return err
			}
		}
	}
	if err := j.removeAll(unneeded...); err != nil {
		return err
	}
	return errors.Join(j.kernelFiles(), j.users(), j.links(), j.certificates(), j.bios())
}

// kernelFiles finds the kernel, removes device trees of other machines and makes the index of modules.
func (j *job) kernelFiles() error {
	found, _ := filepath.Glob(j.in("usr/lib/modules/*"))
	if len(found) != 1 {
		return fmt.Errorf("%d kernels in the image; packages.list names one", len(found))
	}
	j.kernel = filepath.Base(found[0])
	trees, _ := filepath.Glob(filepath.Join(found[0], "dtb/*/*"))
	for _, t := range trees {
		if name := filepath.Base(t); !strings.HasPrefix(name, "bcm27") && !strings.HasPrefix(name, "bcm28") {
			if err := os.RemoveAll(t); err != nil {
				return err
			}
		}
	}
	return run("", "depmod", "-b", j.root, j.kernel)
}

// users makes the files of users and groups: Debian's fixed ones, then those that the packages declare for systemd. No
// user has a password.
func (j *job) users() error {
	if err := errors.Join(
		copyFile(j.in("usr/share/base-passwd", "passwd.master"), j.in("etc/passwd"), 0o644),
		copyFile(j.in("usr/share/base-passwd", "group.master"), j.in("etc/group"), 0o644)); err != nil {
		return err
	}
	var declared bytes.Buffer
	ours, err := fs.ReadFile(files.Root, "root/usr/lib/sysusers.d/rivulet.conf")
	if err != nil {
		return err
	}
	all, _ := filepath.Glob(j.in("usr/lib/sysusers.d/*.conf"))
	slices.Sort(all)
	for _, f := range all {
		raw, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			// u! locks the account; an older systemd on the build host does not support it.
			if rest, locked := strings.CutPrefix(line, "u!"); locked {
				line = "u" + rest
			}
			declared.WriteString(line)
		}
		declared.WriteByte('\n')
	}
	declared.Write(ours)
	if err := runIn("", nil, declared.String(), "systemd-sysusers", "--root="+j.root, "-"); err != nil {
		return err
	}
	for _, f := range []struct{ from, to, rest string }{{"passwd", "shadow", ":*:19000:0:99999:7:::"}, {"group", "gshadow", ":*::"}} {
		raw, err := os.ReadFile(j.in("etc", f.from))
		if err != nil {
			return err
		}
		var out strings.Builder
		for line := range strings.Lines(string(raw)) {
			name, _, _ := strings.Cut(line, ":")
			out.WriteString(name + f.rest + "\n")
		}
		if err := put(j.in("etc", f.to), out.String(), 0o600); err != nil {
			return err
		}
	}
	for _, left := range []string{"passwd-", "group-", "shadow-", "gshadow-", ".pwd.lock"} {
		os.Remove(j.in("etc", left))
	}
	return nil
}

// links replace those made by scripts and by update-alternatives.
func (j *job) links() error {
	var errs []error
	for path, to := range map[string]string{
		"usr/bin/awk":     "mawk",
		"usr/bin/sh":      "dash",
		"usr/bin/ping":    "busybox",
		"usr/bin/vi":      "busybox",
		"usr/bin/less":    "busybox",
		"var/run":         "/run",
		"var/lock":        "/run/lock",
		"etc/resolv.conf": "../run/systemd/resolve/stub-resolv.conf",
		"etc/mtab":        "../proc/self/mounts",
		"etc/os-release":  "../usr/lib/os-release",
		"etc/localtime":   "/usr/share/zoneinfo/UTC",
		// The database of allowed radio channels, as signed by its authors.
		"usr/lib/firmware/regulatory.db":     "regulatory.db-upstream",
		"usr/lib/firmware/regulatory.db.p7s": "regulatory.db.p7s-upstream",
	} {
		if path != "usr/bin/sh" || !exists(j.in(path)) {
			errs = append(errs, link(to, j.in(path)))
		}
	}
	for _, d := range []string{"boot/firmware", "data", "root", "proc", "sys", "dev", "run", "tmp", "mnt", "opt", "var/tmp", "var/log/rivulet", "var/log/pods",
		"var/lib/rivulet", "var/lib/kubelet", "var/lib/systemd", "var/lib/iwd", "var/lib/private", "var/cache", "run/lock", "usr/local/bin"} {
		errs = append(errs, os.MkdirAll(j.in(d), 0o755))
	}
	for d, mode := range map[string]os.FileMode{"root": 0o700, "var/lib/private": 0o700, "tmp": 0o777 | os.ModeSticky, "var/tmp": 0o777 | os.ModeSticky} {
		errs = append(errs, os.Chmod(j.in(d), mode))
	}
	for from, to := range map[string]string{"usr/share/base-files/profile": "etc/profile", "usr/share/openssh/sshd_config": "etc/ssh/sshd_config"} {
		if exists(j.in(from)) {
			errs = append(errs, copyFile(j.in(from), j.in(to), 0o644))
		}
	}
	return errors.Join(append(errs, putAll(map[string]string{
		// A script generates the PAM configuration: these are the five files that it would write.
		j.in("etc/pam.d/common-account"):                "account required pam_unix.so\n",
		j.in("etc/pam.d/common-auth"):                   "auth required pam_deny.so\n",
		j.in("etc/pam.d/common-password"):               "password required pam_deny.so\n",
		j.in("etc/pam.d/common-session"):                "session required pam_unix.so\nsession optional pam_systemd.so\n",
		j.in("etc/pam.d/common-session-noninteractive"): "session required pam_unix.so\n",
		j.in("etc/nsswitch.conf"): "passwd: files systemd\ngroup: files systemd\nshadow: files\n" +
			"hosts: files mymachines myhostname resolve [!UNAVAIL=return] dns\n",
	}))...)
}

// certificates makes the one file that programs read.
func (j *job) certificates() error {
	files, _ := filepath.Glob(j.in("usr/share/ca-certificates/mozilla/*.crt"))
	slices.Sort(files)
	if len(files) < 50 {
		return fmt.Errorf("only %d certificate authorities; ca-certificates has changed", len(files))
	}
	var all bytes.Buffer
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all.Write(raw)
	}
	return put(j.in("etc/ssl/certs/ca-certificates.crt"), all.String(), 0o644)
}
