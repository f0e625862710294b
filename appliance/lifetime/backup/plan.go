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

// plan is a restore that is decided. Once it is on disk under its name it is
// carried out, by whoever comes first: the restore itself, or a later start.
type plan struct {
	Format int       `json:"format"`
	Begun  time.Time `json:"begun"`
	Steps  []step    `json:"steps"`
}

// step puts what was staged at New into Place, and what was there to Aside. An
// empty New only sets aside. Each of its two renames is done at most once, however
// often the step is begun.
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

// decide writes the plan durably. What it names is on disk before it.
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

// folders are those that hold what the plan moves.
func (p plan) folders(work string) []string {
	out := []string{work}
	for _, s := range p.Steps {
		if dir := filepath.Dir(s.New); s.New != "" && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

// Finish carries out a restore that was decided and then interrupted, and clears
// away one that was interrupted before. Every start calls it first. It reports
// whether it restored something.
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
	// The plan goes first: without it the rest is only to be cleared away.
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
			return nil // it was moved before
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

// move renames durably. The folder of the new name is made if there is none.
func move(from, to string) error {
	if _, err := os.Lstat(from); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return durable.Rename(from, to)
}

// syncFS has everything on disk that was written to path's file system.
func syncFS(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}
