package doctor

import (
	"context"
	"errors"
	"os"

	"rivulet/appliance/health"
)

// What containers and unusual file systems lack: a machine of its own has both.
var (
	kmsg    = Probe{Kind: health.Kmsg, Title: kmsgFile, Every: rarely, Run: probeKmsg}
	overlay = Probe{Kind: health.Overlayfs, Title: "overlayfs on the disk of the state", Run: probeOverlay}
)

const kmsgFile = "/dev/kmsg"

// probeKmsg opens the kernel's log, as the kubelet does to learn of processes killed for want of memory. The kubelet ends
// without it, but reads nothing that it needs: a terminal will do.
func probeKmsg(_ context.Context, e *Env) Result {
	f, err := os.Open(e.path(kmsgFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return Failf("echo 'L /dev/kmsg - - - - /dev/console' >/etc/tmpfiles.d/kmsg.conf; systemd-tmpfiles --create; systemctl restart rivulet",
			"%s is not there, as in many containers: the kubelet does not start", kmsgFile)
	case unixPermission(err) && e.User != 0:
		return Skipf("it is there; whether it can be read only root can see")
	case err != nil:
		return Failf("allow the device 1:11 for this container, on its host (LXC: lxc.cgroup2.devices.allow: c 1:11 rwm)",
			"%s cannot be opened (%v): the kubelet does not start", kmsgFile, err)
	}
	f.Close()
	return Passf("usable")
}

// probeOverlay mounts layers in the state folder, as containerd does for each container.
func probeOverlay(_ context.Context, e *Env) Result {
	dir := e.existing(e.State)
	if e.User != 0 {
		return Skipf("only root can see that: sudo rivulet doctor")
	}
	err := e.Overlay(e.path(dir))
	m, _ := e.mountOf(dir)
	if err != nil {
		return Failf(e.overlayCure(m), "%s (%s): %v: no container starts", dir, m.kind, err)
	}
	return Passf("%s (%s)", dir, m.kind)
}

// overlayCure is for the file system that takes no layers.
func (e *Env) overlayCure(m mount) string {
	const disk = "mount a disk with ext4 there: nano /etc/fstab; reboot (\"The state on a disk of its own\" in: rivulet docs machines)"
	switch {
	case m.kind == "zfs":
		return "update ZFS to 2.2 or newer (see: zfs version); or: " + disk
	case m.kind == "overlay" && e.exists("/usr/bin/raspi-config"):
		return "raspi-config nonint do_overlayfs 1; reboot (the card can be written again then); or: " + disk
	case m.kind == "overlay":
		return "give this container a volume for " + m.at + " (docker run -v rivulet:/var/lib/rivulet); or: " + disk
	}
	return disk
}
