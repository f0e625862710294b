package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rivulet/appliance/state/durable"
	"rivulet/systemd"
)

// moduleState is the availability of a kernel module.
type moduleState int

const (
	absent moduleState = iota
	loadable
	loaded
	builtin
)

func (e *Env) module(name string) moduleState {
	if name == "" {
		return absent
	}
	if e.exists("/sys/module/" + name) {
		return loaded // or built in, with parameters
	}
	dir := "/lib/modules/" + e.read("/proc/sys/kernel/osrelease")
	if listsModule(e.read(dir+"/modules.builtin"), name) {
		return builtin
	}
	if listsModule(e.read(dir+"/modules.dep"), name) {
		return loadable
	}
	return absent
}

// listsModule looks for a path that ends in the module's file; compressed ones have a suffix.
func listsModule(list, name string) bool {
	for line := range strings.Lines(list) {
		file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		base, _, ok := strings.Cut(filepath.Base(file), ".ko")
		if ok && strings.ReplaceAll(base, "-", "_") == name {
			return true
		}
	}
	return false
}

// loadModule loads a module now and at every boot.
func (e *Env) loadModule(name string) *Fix {
	return &Fix{
		Says: fmt.Sprintf("loads the kernel module %s, now and at boot (%s)", name, systemd.ModulesPath),
		Do: func(ctx context.Context) error {
			if _, err := e.Exec(ctx, "modprobe", name); err != nil {
				return err
			}
			lines := strings.Fields(e.read(systemd.ModulesPath))
			if slices.Contains(lines, name) {
				return nil
			}
			if err := os.MkdirAll(filepath.Dir(e.path(systemd.ModulesPath)), 0o755); err != nil {
				return err
			}
			return durable.Write(e.path(systemd.ModulesPath), []byte(strings.Join(append(lines, name), "\n")+"\n"), 0o644)
		},
	}
}
