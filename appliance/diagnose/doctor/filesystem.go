package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/appliance/health"
)

var filesystem = Probe{Kind: health.Filesystem, Title: "file system", Every: often, Run: probeFilesystem}

func probeFilesystem(_ context.Context, e *Env) Result {
	dir := e.existing(e.State)
	m, ok := e.mountOf(dir)
	if ok && slices.Contains(m.options, "ro") {
		return Failf("look for errors (dmesg), copy what matters, check the file system (fsck) from another system; a card that does this is to be replaced",
			"%s (%s) can only be read: nothing that happens now is kept", m.at, m.device)
	}
	if ok && slices.Contains(m.options, "noexec") {
		return Failf("mount -o remount,exec "+m.at+", and take noexec out of /etc/fstab; or move "+e.State+" to another file system",
			"%s (%s) is mounted noexec: Rivulet and containers start programs from %s", m.at, m.device, e.State)
	}
	var bad []string
	for _, f := range e.glob("/sys/fs/ext4/*/errors_count") {
		if n := e.read(f); n != "" && n != "0" {
			bad = append(bad, filepath.Base(filepath.Dir(f))+": "+n)
		}
	}
	if len(bad) > 0 {
		return Failf("back up (rivulet backup FILE), check the file system (touch /forcefsck; reboot, or fsck from another system), and replace the card if errors come back",
			"ext4 has counted errors: %s", strings.Join(bad, ", "))
	}
	if !ok {
		return Skipf("%s is on no mount that can be seen", dir)
	}
	return Passf("%s (%s), no errors known", m.at, m.kind)
}

func unixPermission(err error) bool { return errors.Is(err, fs.ErrPermission) }
