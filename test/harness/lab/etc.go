package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// makeEtc lays what the device writes over the host's /etc. What the host may have of Rivulet and Kubernetes there is not the
// device's: it does not show. The machine ID is the device's for life.
func makeEtc(c bootConfig, root string) error {
	base := c.Dir
	if c.Disk != "" {
		base = filepath.Join(root, ".lab")
	}
	upper, work, etc := filepath.Join(base, "etc"), filepath.Join(base, "etc.work"), filepath.Join(root, "etc")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	for _, d := range []string{"rivulet", "rancher", "cni", "containerd", "kubernetes"} {
		hide := filepath.Join(upper, d)
		if err := os.Mkdir(hide, 0o755); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("lab: %w", err)
		}
		if err := unix.Setxattr(hide, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return fmt.Errorf("lab: %s: %w: put the lab on a file system like ext4", hide, err)
		}
	}
	if err := mount("etc", etc, "overlay", 0, fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", upper, work)); err != nil {
		return fmt.Errorf("%w: put the lab on a file system like ext4", err)
	}
	files := map[string]string{
		"hostname": c.Name + "\n", "resolv.conf": "",
		"hosts": "127.0.0.1 localhost " + c.Name + "\n::1 localhost\n",
	}
	if _, err := os.Lstat(filepath.Join(upper, "machine-id")); errors.Is(err, fs.ErrNotExist) {
		id := make([]byte, 16)
		rand.Read(id)
		files["machine-id"] = hex.EncodeToString(id) + "\n"
	}
	for name, content := range files {
		path := filepath.Join(etc, name)
		os.Remove(path) // may be a symbolic link out of /etc
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("lab: %w", err)
		}
	}
	if c.Systemd {
		return prepareSystemd(etc)
	}
	return nil
}
