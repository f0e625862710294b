// Package quarantine sets damaged files and folders aside without losing them: they stay beside their place under
// another name, for an operator to inspect. It reads and writes nothing else. `rivulet status` lists them until they
// are deleted.
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
	"rivulet/appliance/state/paths"
)

// mark is between the old name and the time in the new one.
const mark = ".damaged-"

// Name is the name of path when it is set aside at that time.
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

// Link adds the set-aside name as a second one, for a path that is then replaced in one step.
func Link(path string) (aside string, err error) {
	aside = Name(path, time.Now())
	if err := os.Link(path, aside); err != nil {
		return "", durable.Cure(fmt.Errorf("quarantine: %w", err))
	}
	return aside, durable.SyncDir(filepath.Dir(path))
}

// List returns what is set aside in the folders, sorted.
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

// All returns what is set aside in a state folder, by this start or an earlier one, sorted.
func All(state string) []string {
	return List(state, filepath.Dir(paths.Server(state)), paths.Agent(state), paths.Server(state, "db"))
}
