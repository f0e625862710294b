package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
)

const tunFile = "/dev/net/tun"

var tun = Probe{Kind: health.Tun, Title: tunFile, Every: rarely, Run: probeTun}

func probeTun(_ context.Context, e *Env) Result {
	fi, err := os.Stat(e.path(tunFile))
	if err != nil {
		r := Failf("rivulet doctor --fix, or: modprobe tun; in a container, hand the device in (--device /dev/net/tun)", "%s is not there: no tunnel to peers", tunFile)
		r.Fix = e.makeTun()
		return r
	}
	if fi.Mode()&os.ModeCharDevice == 0 {
		return Failf("move it away (mv /dev/net/tun /dev/net/tun.wrong), then: rivulet doctor --fix", "%s is no device", tunFile)
	}
	f, err := os.OpenFile(e.path(tunFile), os.O_RDWR, 0)
	switch {
	case os.IsPermission(err) && os.Geteuid() != 0:
		return Skipf("it is there; whether it can be used only root can see")
	case os.IsPermission(err):
		return Failf("allow the device 10:200 for this container or service", "%s may not be opened: no tunnel to peers", tunFile)
	case err != nil:
		r := Failf("modprobe tun, or use a kernel with CONFIG_TUN", "%s cannot be opened: %v", tunFile, err)
		if e.module("tun") == loadable {
			r.Fix = e.loadModule("tun")
		}
		return r
	}
	f.Close()
	return Passf("usable")
}

// makeTun loads the module, if it is one, and creates the device file, if there is no udev.
func (e *Env) makeTun() *Fix {
	node := &Fix{
		Says: "makes the device file " + tunFile,
		Do: func(context.Context) error {
			path := e.path(tunFile)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200))); err != nil && !os.IsExist(err) {
				return fmt.Errorf("mknod %s: %w", tunFile, err)
			}
			return os.Chmod(path, 0o666) // independent of the umask
		},
	}
	if e.module("tun") == loadable {
		return both(e.loadModule("tun"), node)
	}
	return node
}
