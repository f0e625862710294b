package backup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// configFile is the file of the configuration with the cluster's name.
const configFile = "config.yaml"

// stageConfig copies the files below staged beside the files of the configuration, which are often on another file
// system than the state, and returns the steps that move them into place. Files that are not in the backup stay.
func stageConfig(config, staged, aside string, now time.Time) ([]step, error) {
	clearStaged(config) // left by a killed restore
	var out []step
	err := filepath.WalkDir(staged, func(at string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(staged, at)
		if err != nil {
			return err
		}
		place := filepath.Join(config, name)
		fresh := filepath.Join(filepath.Dir(place), fmt.Sprintf("%s%d-%s", stagePrefix, now.Unix(), filepath.Base(name)))
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return err
		}
		if err := copyFile(at, fresh); err != nil {
			return err
		}
		out = append(out, step{New: fresh, Place: place, Aside: filepath.Join(config, aside, name)})
		return nil
	})
	return out, err
}

// clearStaged removes files staged beside the configuration that were never moved into place.
func clearStaged(config string) {
	_ = filepath.WalkDir(config, func(at string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.HasPrefix(e.Name(), stagePrefix) {
			os.Remove(at)
		}
		return nil
	})
}

func copyFile(from, to string) error {
	fi, err := os.Stat(from)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, raw, 0o600); err != nil {
		return err
	}
	return os.Chmod(to, fi.Mode().Perm())
}

var nameLine = regexp.MustCompile(`(?m)^name:[^\n]*$`)

// rename sets the cluster's name in the configuration, which may be missing; the rest of the file stays.
func rename(file, name string) error {
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("backup: %w", err)
	}
	line := []byte("name: " + name)
	if nameLine.Match(raw) {
		raw = nameLine.ReplaceAllLiteral(raw, line)
	} else {
		raw = bytes.Join([][]byte{line, raw}, []byte("\n"))
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}
