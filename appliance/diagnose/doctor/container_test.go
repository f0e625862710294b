package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rivulet/image/device/layout"
)

// A container without the kernel's log, where the kubelet ends.
func TestKmsg(t *testing.T) {
	found(t, machine(t, nil), kmsg, Fail, "/dev/kmsg is not there", "systemd-tmpfiles --create")
	found(t, machine(t, files{kmsgFile: "6,1,0,-;Linux\n"}), kmsg, Pass)
	found(t, machine(t, files{kmsgFile: "-> console", "/dev/console": ""}), kmsg, Pass)
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a device that nobody has")
	}
	e := machine(t, files{"/dev/null": ""})
	if err := unix.Mknod(e.path(kmsgFile), unix.S_IFCHR|0o600, int(unix.Mkdev(240, 7))); errors.Is(err, unix.EPERM) {
		t.Skip("needs the right to make a device that nobody has")
	} else if err != nil {
		t.Fatal(err)
	}
	found(t, e, kmsg, Fail, "cannot be opened", "c 1:11 rwm")
}

// A file system that takes no layers is named, with what its owner can do.
func TestOverlay(t *testing.T) {
	const disk = "mount a disk with ext4 there"
	for _, c := range []struct {
		mount string
		tree  files
		cures []string
	}{
		{"tank/x /var/lib/rivulet zfs rw 0 0", nil, []string{"(zfs)", "ZFS to 2.2", disk}},
		{"overlayroot / overlay rw 0 0", files{"/usr/bin/raspi-config": ""}, []string{"raspi-config nonint do_overlayfs 1", disk}},
		{"overlay / overlay rw 0 0", nil, []string{"-v rivulet:/var/lib/rivulet", disk}},
		{"/home/.x /var/lib/rivulet ecryptfs rw 0 0", nil, []string{"(ecryptfs)", disk}},
	} {
		e := machine(t, with(c.tree, files{"/proc/mounts": c.mount + "\n", "/var/lib/rivulet/state.db": ""}))
		asked := ""
		e.overlay = func(dir string) error { asked = dir; return nil }
		found(t, e, overlay, Pass)
		if asked != e.path("/var/lib/rivulet") {
			t.Errorf("%s was tried", asked)
		}
		e.overlay = func(string) error { return unix.EINVAL }
		found(t, e, overlay, Fail, append(c.cures, "invalid argument: no container starts")...)
		e.User = 1000
		found(t, e, overlay, Skip)
	}
}

// The kernel's own answer, on file systems that it takes as the upper layer and on one that it does not.
func TestOverlayIsTried(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	try := Here(t.TempDir(), t.TempDir()).Overlay
	good := t.TempDir()
	if err := unix.Mount("tmpfs", good, "tmpfs", 0, ""); errors.Is(err, unix.EPERM) {
		t.Skip("needs the right to mount")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(good, unix.MNT_DETACH) }()
	if err := try(good); err != nil {
		t.Errorf("tmpfs: %v", err)
	}
	for _, d := range []string{"low", "up", "work", "at"} {
		if err := os.Mkdir(filepath.Join(good, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	layers := filepath.Join(good, "at")
	if err := unix.Mount("overlay", layers, "overlay", 0, "lowerdir="+good+"/low,upperdir="+good+"/up,workdir="+good+"/work"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(layers, unix.MNT_DETACH) }()
	if err := try(layers); err == nil {
		t.Error("layers on layers: no error")
	}
	if left, err := os.ReadDir(layers); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A flashed device whose boot partition is older than what runs: the cure copies what differs, in the order that starts.
func TestBootFiles(t *testing.T) {
	all := layout.BootFiles[runtime.GOARCH]
	if len(all) == 0 {
		t.Skipf("there is no image for %s", runtime.GOARCH)
	}
	tree := files{layout.RunSlot: "a\n"}
	for _, f := range all {
		tree["/"+f.Root], tree[layout.BootDir+"/"+f.Boot] = "new "+f.Boot, "new "+f.Boot
	}
	found(t, machine(t, nil), bootFiles, Skip, "not a flashed device")
	found(t, machine(t, tree), bootFiles, Pass)
	first, last := all[0], all[len(all)-1]
	tree[layout.BootDir+"/"+last.Boot] = "old"
	delete(tree, layout.BootDir+"/"+first.Boot)
	r := found(t, machine(t, tree), bootFiles, Warn, first.Boot+", "+last.Boot)
	copies := "cp /" + first.Root + " " + layout.BootDir + "/" + first.Boot + " && cp /" + last.Root + " " + layout.BootDir + "/" + last.Boot + "; sync"
	if !strings.Contains(r.Cure, copies) {
		t.Errorf("%q lacks %q", r.Cure, copies)
	}
}
