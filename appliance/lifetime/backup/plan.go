package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/state/durable"
)

// plan is a restore in its final phase. Once it is stored it will be completed, by the restore itself or a later start.
type plan struct {
	Format int       `json:"format"`
	Begun  time.Time `json:"begun"`
	Steps  []step    `json:"steps"`
}

// step moves what was staged at New to Place, and the old content to Aside. An empty New only sets aside. Each of the
// two renames is done at most once, however often the step is repeated.
type step struct {
	New   string `json:"new,omitempty"`
	Place string `json:"place"`
	Aside string `json:"aside"`
}

const (
	workDir     = ".restore"  // below the state folder
	planName    = "plan.json" // in workDir
	stagePrefix = ".restore-" // of files staged in the configuration's folder
	asidePrefix = "before-restore-"
)

// decide writes the plan durably. The files that it names are on disk before.
func (p plan) decide(state string) error {
	work := filepath.Join(state, workDir)
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	for _, dir := range p.folders(work) {
		if err := syncFS(dir); err != nil {
			return err
		}
	}
	return durable.Write(filepath.Join(work, planName), raw, 0o600)
}

// folders are the folders in which the plan moves files.
func (p plan) folders(work string) []string {
	out := []string{work}
	for _, s := range p.Steps {
		if dir := filepath.Dir(s.New); s.New != "" && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

// Finish completes an interrupted restore with a plan, and cleans up after one without. Every start calls it first. It
// reports whether it restored something.
func Finish(state string) (bool, error) {
	work := filepath.Join(state, workDir)
	if _, err := os.Lstat(work); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	release, err := lockFile(work + ".lock")
	if err != nil {
		return false, err
	}
	defer release()
	return finish(state)
}

func finish(state string) (bool, error) {
	work := filepath.Join(state, workDir)
	cure := func(err error) error {
		return fmt.Errorf("backup: a restore is not finished: %w; then start again", durable.Cure(err))
	}
	raw, err := os.ReadFile(filepath.Join(work, planName))
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.RemoveAll(work); err != nil {
			return false, cure(err)
		}
		return false, nil
	}
	if err != nil {
		return false, cure(err)
	}
	var p plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return false, cure(fmt.Errorf("%s: %w", filepath.Join(work, planName), err))
	}
	for _, s := range p.Steps {
		if err := s.do(); err != nil {
			return false, cure(err)
		}
	}
	// The plan is deleted first: without it the rest is only cleaned up.
	if err := durable.Remove(filepath.Join(work, planName)); err != nil {
		return false, cure(err)
	}
	if err := os.RemoveAll(work); err != nil {
		return false, cure(err)
	}
	return true, nil
}

func (s step) do() error {
	if s.New != "" {
		if _, err := os.Lstat(s.New); errors.Is(err, fs.ErrNotExist) {
			return nil // moved before
		} else if err != nil {
			return err
		}
	}
	if _, err := os.Lstat(s.Aside); errors.Is(err, fs.ErrNotExist) {
		if err := move(s.Place, s.Aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else if err != nil {
		return err
	}
	if s.New == "" {
		return nil
	}
	return move(s.New, s.Place)
}

// move renames durably. It creates the folder of the new name if needed.
func move(from, to string) error {
	if _, err := os.Lstat(from); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return durable.Rename(from, to)
}

// syncFS syncs path's file system.
func syncFS(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}
