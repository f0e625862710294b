package flash

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// uses reads mounts and swap devices, by major:minor and by path.
func (m Machine) uses() (map[string]use, error) {
	out := map[string]use{}
	raw, err := fs.ReadFile(m.Proc, "self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("flash: mounts cannot be listed: %w; is /proc mounted?", err)
	}
	for line := range strings.Lines(string(raw)) {
		before, after, ok := strings.Cut(line, " - ")
		f, src := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(src) < 2 {
			continue
		}
		where := unescape(f[4])
		u := use{"%s is mounted at " + strings.ReplaceAll(where, "%", "%%"), "unmount it first: sudo umount " + where}
		if system(where) {
			u = use{systemRuns + " %s (" + strings.ReplaceAll(where, "%", "%%") + " is there)", "choose another disk; see: rivulet flash --list"}
		}
		// By number; and by name, for file systems with their own device numbers (btrfs).
		for _, key := range []string{f[2], unescape(src[1])} {
			if was, had := out[key]; !had || !strings.HasPrefix(was.what, systemRuns) {
				out[key] = u
			}
		}
	}
	raw, err = fs.ReadFile(m.Proc, "swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("flash: swap space cannot be listed: %w; is /proc mounted?", err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "/dev/") {
			out[unescape(f[0])] = use{"%s is swap space", "switch it off first: sudo swapoff " + unescape(f[0])}
		}
	}
	return out, nil
}

// system reports whether a mount point is part of the running system.
func system(where string) bool {
	return slices.Contains([]string{"/", "/usr", "/var", "/etc", "/home", "/boot", "/boot/efi", "/boot/firmware", "/var/lib/rivulet"}, where)
}

// unescape decodes the kernel's octal form of blanks.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`).Replace(s)
}
