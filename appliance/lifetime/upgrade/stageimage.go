package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"rivulet/appliance/lifetime/slots"
	"rivulet/appliance/state/paths"
	"rivulet/image/device/layout"
	"rivulet/image/flash"
	"rivulet/image/signed"
)

// StageImage checks an update bundle and, unless only that was requested, writes it to the slot that does not run, to
// be tried at the next start of rivulet.
func StageImage(ctx context.Context, r Request) (next Version, err error) {
	dir := paths.Versions(r.State)
	trust, err := signed.Linked()
	if err != nil {
		return next, err
	}
	sig, err := readSignature(r.File)
	if err != nil {
		return next, err
	}
	here, err := slots.Running()
	if err != nil {
		return next, refused("%w; take the file rivulet of the release instead, a bundle is for devices that were flashed", err)
	}
	s, release, err := claim(dir)
	if err != nil {
		return next, err
	}
	defer release()
	f, err := os.Open(r.File)
	if err != nil {
		return next, fmt.Errorf("update: %w; name the file of a release", err)
	}
	defer f.Close()
	verify := func(d *signed.Digest) error { return sig.Verify(d, trust.AtLeast(s.Generation)) }
	next, rootSize, err := checkBundle(ctx, f, r.progress(), verify)
	if err != nil {
		return next, err
	}
	from, err := running(ctx, r)
	if err != nil {
		return next, err
	}
	if err := fits(onData(r.State, from), next, r.Older); err != nil {
		return next, err
	}
	if next.Dir, err = dirName(next.Name, next.BuildID); err != nil || r.CheckOnly {
		return next, err
	}
	if err := Room(r.State, spare); err != nil {
		return next, err
	}
	if err := remembers(layout.DataFailed); err != nil {
		return next, err
	}
	fill := func() error { return fillSlot(ctx, f, here, rootSize, r.progress(), verify) }
	os.Remove(filepath.Join(dir, cancelName))
	return next, stageImage(s, func(s State) error { return store(dir, s) }, fill, Attempt{
		Next: next, From: from, Window: r.Window, Every: r.Every, Peers: r.Peers, Answered: r.answering(ctx), Generation: sig.Certificate.Generation, StagedAt: r.Now,
		Image: &Image{From: here.String(), To: here.Other().String()}})
}

// remembers refuses an update if a restart would lose its state and the data: the initrd has written why the data
// partition could not be used.
func remembers(failed string) error {
	switch why, err := os.ReadFile(failed); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("update: %w; restart the device", err)
	default:
		return refused("this device keeps nothing over a restart: %s; put in another card or disk and flash it", strings.TrimSpace(string(why)))
	}
}

// stageImage fills the other slot, and stores the attempt only then: an incomplete slot must not be tried.
func stageImage(s State, save func(State) error, fill func() error, a Attempt) error {
	if s.Attempt != nil {
		s = s.ended("another upgrade was begun", "", a.StagedAt)
		if err := save(s); err != nil {
			return err
		}
	}
	if err := fill(); err != nil {
		return err
	}
	return save(s.staged(a))
}

// checkBundle reads a bundle to its end; the signature is verified before anything in it is used. It returns its
// version, and the size of its root.
func checkBundle(ctx context.Context, f *os.File, show flash.Progress, verify func(*signed.Digest) error) (v Version, root int64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return v, 0, fmt.Errorf("update: %w; name the file of a release", err)
	}
	d := signed.NewDigest()
	m, err := slots.Read(ctx, &counted{Reader: f, of: fi.Size(), show: show}, d, nil)
	if err != nil {
		return v, 0, refused("%w", err)
	}
	if err := verify(d); err != nil {
		return v, 0, refused("%w", err)
	}
	if m.Arch != runtime.GOARCH {
		return v, 0, refused("it is for another machine (%s), this one is %s; get the bundle for %s", m.Arch, runtime.GOARCH, runtime.GOARCH)
	}
	v = Version{Name: m.Version, Kubernetes: m.Kubernetes}
	for _, x := range m.Files {
		if x.Name == layout.RootName {
			v.BuildID, root = x.SHA256, x.Size // the hash identifies an image
		}
	}
	return v, root, nil
}

// fillSlot writes the other slot from a verified bundle.
func fillSlot(ctx context.Context, f *os.File, here layout.Slot, rootSize int64, show flash.Progress, verify func(*signed.Digest) error) error {
	root, err := slots.OpenRoot(here.Other())
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := f.Seek(0, 0); err != nil {
		return fmt.Errorf("update: %w; name the file of a release", err)
	}
	return slots.Change(func(b slots.Boot) error {
		if err := slots.Clear(b, here); err != nil {
			return err
		}
		d := signed.NewDigest()
		if _, err := slots.Fill(ctx, f, d, b, &countedRoot{Root: root, of: rootSize, show: show}, func() { flash.Forget(root) }, here.Other()); err != nil {
			return err
		}
		if err := verify(d); err != nil {
			return refused("the file changed while it was written (%w); copy it once more", err)
		}
		return nil
	})
}
