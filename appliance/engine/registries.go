package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"rivulet/appliance/config"
)

// registriesFile is read by k3s once, at its start.
func (e *Engine) registriesFile() string {
	if e.cfg.Registries == "" {
		return config.OwnRegistries
	}
	return e.ourRegistries()
}

func (e *Engine) ourRegistries() string { return filepath.Join(e.cfg.StateDir, "k3s-registries.yaml") }

// writeRegistries writes the file, or removes one without content: it may hold passwords.
func (e *Engine) writeRegistries() error {
	if e.cfg.Registries != "" {
		return writeFile(e.ourRegistries(), e.cfg.Registries)
	}
	if err := os.Remove(e.ourRegistries()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("engine: %w; look at the disk (space, read-only mount)", err)
	}
	return nil
}
