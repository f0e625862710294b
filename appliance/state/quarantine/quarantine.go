// Package quarantine puts what is damaged out of the way without losing it: the
// file or folder stays beside its place under another name, for a person to look
// at. It reads nothing else and writes nothing else. What was set aside is listed
// by `rivulet status` until somebody deletes it.
package quarantine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"rivulet/appliance/state/durable"
)

// mark is between the old name and the time in the new one.
const mark = ".damaged-"

// Name is what path is called when it is set aside at that time.
func Name(path string, at time.Time) string {
	return path + mark + at.UTC().Format("20060102T150405.000Z")
}

// Move renames path; its new name survives a power cut once this returns.
func Move(path string) (aside string, err error) {
	aside = Name(path, time.Now())
	if err := durable.Rename(path, aside); err != nil {
		return "", fmt.Errorf("quarantine: %w", err)
	}
	return aside, nil
}

// Link gives path its set-aside name as a second one, where path itself is then
// replaced in one step.
func Link(path string) (aside string, err error) {
	aside = Name(path, time.Now())
	if err := os.Link(path, aside); err != nil {
		return "", durable.Cure(fmt.Errorf("quarantine: %w", err))
	}
	return aside, durable.SyncDir(filepath.Dir(path))
}

// List returns what lies set aside in the folders, sorted.
func List(dirs ...string) []string {
	var out []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), mark) {
				out = append(out, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(out)
	return out
}
