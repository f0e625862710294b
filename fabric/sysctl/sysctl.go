// Package sysctl keeps settings of the kernel as they have to be. It reads and writes only
// those that a caller names, below /proc/sys, and keeps nothing: the kernel tells nobody of a
// change, so whoever keeps a setting looks at it every Look.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Interval is how often to look.
const Interval = time.Second

// Setting is one, by its path below /proc/sys.
type Setting struct{ Name, Value string }

// Keep writes those that have another value, and returns their names. One that this kernel has
// not is left out. The error names those that cannot be written, with a cure.
func Keep(all ...Setting) (changed []string, err error) {
	for _, s := range all {
		path := "/proc/sys/" + s.Name
		have, e := os.ReadFile(path)
		if errors.Is(e, fs.ErrNotExist) || e == nil && strings.TrimSpace(string(have)) == s.Value {
			continue
		}
		if e := os.WriteFile(path, []byte(s.Value), 0o644); e != nil {
			name := strings.ReplaceAll(s.Name, "/", ".")
			err = errors.Join(err, fmt.Errorf("%s is not %s: %w; sysctl -w %s=%s", name, s.Value, e, name, s.Value))
			continue
		}
		changed = append(changed, s.Name)
	}
	return changed, err
}
