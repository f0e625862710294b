// Package sysctl keeps kernel settings at their required values. It reads and writes only those that a caller names,
// below /proc/sys, and keeps no state. The kernel reports no changes, so callers check every Interval.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

const Interval = time.Second

// Setting is one setting, by its path below /proc/sys.
type Setting struct{ Name, Value string }

// Keep writes those with another value, and returns their names. A setting that this kernel does not have is skipped.
// The error names those that cannot be written, with a cure.
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
