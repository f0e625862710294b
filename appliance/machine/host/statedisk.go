package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
)

// errNoStateDisk is in the errors of StateDisk.
var errNoStateDisk = errors.New("the disk with the state is not mounted")

// stateDisk is the record of the file system that has the state, in the folder of the configuration: a disk of its own
// may be missing (nofail in /etc/fstab), and the empty folder below it must not become another cluster.
type stateDisk struct {
	State string `json:"state"`          // the folder
	Mount string `json:"mount"`          // where its file system is mounted
	UUID  string `json:"uuid,omitempty"` // of the file system; empty if it has none
}

// StateDisk checks that the file system that had the state at the last start is mounted, and records a new one. root
// is /; source is the configuration's file, and mountinfo is what the kernel has mounted. A state beside the
// configuration has no record.
func StateDisk(root, state, source, mountinfo string, log *slog.Logger) error {
	file := paths.StateDisk(filepath.Dir(source))
	state, err := filepath.Abs(state)
	if err != nil {
		return fmt.Errorf("%s: %w", state, err)
	}
	mounts := mountsOf(mountinfo)
	var was stateDisk
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, &was)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w, or on another one: %s cannot be read: %w; see that %s is on its disk, then remove the file", errNoStateDisk, file, err, state)
	}
	if was.State == state {
		disk := was.Mount
		if was.UUID != "" {
			disk = fmt.Sprintf("%s (UUID=%s)", was.Mount, was.UUID)
		}
		at, ok := mounts[was.Mount]
		if !ok {
			return fmt.Errorf("%w: %s was on %s, and nothing is mounted there; plug the disk in and: sudo mount %s && sudo systemctl start rivulet. If the state has moved for good: sudo rm %s",
				errNoStateDisk, state, disk, was.Mount, file)
		}
		uuid := uuidOf(root, at)
		if _, err := os.Lstat(paths.Store(state)); errors.Is(err, fs.ErrNotExist) && was.UUID != "" && uuid != "" && uuid != was.UUID {
			return fmt.Errorf("%w: %s was on %s, and UUID=%s is mounted there, without a state; mount the former disk. If this is to be a new device: sudo rm %s",
				errNoStateDisk, state, disk, uuid, file)
		}
	}
	now := stateDisk{State: state, Mount: mountOf(mounts, state)}
	if now.Mount == mountOf(mounts, file) {
		return nil
	}
	if now.UUID = uuidOf(root, mounts[now.Mount]); now == was {
		return nil
	}
	if raw, err = json.Marshal(now); err == nil {
		if err = os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
			err = durable.Write(file, append(raw, '\n'), 0o644)
		}
	}
	if err != nil { // a read-only system
		log.Warn("it cannot be noted which disk has the state: if it is not mounted one day, another cluster begins", "err", err)
	}
	return nil
}

// mountsOf returns the source of each mount point; the last mounted counts.
func mountsOf(mountinfo string) map[string]string {
	out := map[string]string{}
	blanks := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if ok && len(f) > 4 && len(g) > 1 {
			out[blanks.Replace(f[4])] = blanks.Replace(g[1])
		}
	}
	return out
}

// mountOf returns the mount point of a path, which need not exist; links are followed.
func mountOf(mounts map[string]string, path string) string {
	for dir, rest := path, ""; dir != "/"; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			path = filepath.Join(real, rest)
			break
		}
	}
	for path != "/" {
		if _, ok := mounts[path]; ok {
			return path
		}
		path = filepath.Dir(path)
	}
	return "/"
}

// uuidOf returns the UUID of the file system on a device; empty if udev knows none, and for what is no device.
func uuidOf(root, device string) string {
	want, err := filepath.EvalSymlinks(filepath.Join(root, device))
	if err != nil || !strings.HasPrefix(device, "/dev/") {
		return ""
	}
	links, _ := filepath.Glob(filepath.Join(root, "dev/disk/by-uuid/*"))
	for _, l := range links {
		if to, err := filepath.EvalSymlinks(l); err == nil && to == want {
			return filepath.Base(l)
		}
	}
	return ""
}
