package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// saveState keeps the delegated configuration until the container is deleted. The rename makes the write atomic.
func saveState(dir, container string, delegated []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("flannel: state: %w", err)
	}
	path := filepath.Join(dir, container)
	if err := os.WriteFile(path+".new", delegated, 0o600); err != nil {
		return fmt.Errorf("flannel: state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("flannel: state: %w", err)
	}
	return nil
}

// loadState returns fs.ErrNotExist also for a file that a power cut emptied or truncated, because it has no more
// information than a missing one.
func loadState(dir, container string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, container))
	if err != nil {
		return nil, err
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("flannel: state of container %s is damaged: %w", container, fs.ErrNotExist)
	}
	return data, nil
}

func removeState(dir, container string) error {
	if err := os.Remove(filepath.Join(dir, container)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("flannel: state: %w", err)
	}
	return nil
}
