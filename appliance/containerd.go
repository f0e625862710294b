package appliance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/boltfile"
	"rivulet/appliance/cleanup"
	"rivulet/appliance/health"
	"rivulet/appliance/images"
	"rivulet/appliance/setaside"
)

// The parts of containerd's folder.
const (
	metaFile     = "io.containerd.metadata.v1.bolt/meta.db"
	snapshotFile = "io.containerd.snapshotter.v1.overlayfs/metadata.db"
	contentDir   = "io.containerd.content.v1.content"
	// recoveredImages is imported by the engine like any archive in its folder.
	recoveredImages = "rivulet-recovered.tar"
)

// syncPause is after how long images are synced once more: longer than images.Torn is unsure.
const syncPause = 70 * time.Second

func (s *System) agentDir() string   { return filepath.Join(s.cfg.Dirs.State, "k3s", "agent") }
func (s *System) imagesFile() string { return filepath.Join(s.cfg.Dirs.State, "images.json") }
func (s *System) recoveredImages() string {
	return filepath.Join(s.agentDir(), "images", recoveredImages)
}

// prepareContainerd is called before containerd opens its databases. It ends the
// engine's process when one is damaged, for ever; so containerd begins anew: pods
// are made again from the cluster's own database, images from the blobs that are
// still there.
func (s *System) prepareContainerd(ctx context.Context) error {
	dir := filepath.Join(s.agentDir(), "containerd")
	var cause error
	for _, f := range []string{metaFile, snapshotFile} {
		if err := boltfile.Check(filepath.Join(dir, f)); errors.Is(err, boltfile.ErrDamaged) {
			cause = errors.Join(cause, fmt.Errorf("%s: %w", filepath.Base(f), err))
		} else if err != nil {
			return fmt.Errorf("containerd's %s: %w; look at the disk", f, err)
		}
	}
	torn := false
	if cause == nil {
		cause = s.tornLayers(dir)
		torn = cause != nil
	}
	if cause == nil {
		return os.WriteFile(s.bootFile(), nil, 0o600)
	}
	if err := cleanup.EndPods(ctx, traces(s.cfg.Dirs, s.cfg.EngineName)); err != nil {
		return err
	}
	// The archive is in its place before the old folder leaves its own: the power may
	// go again at any moment, and then all of this is done again.
	list, err := s.knownImages(filepath.Join(dir, metaFile))
	var kept []string
	if err == nil {
		kept, err = images.Archive(filepath.Join(dir, contentDir), list, s.recoveredImages())
	}
	aside, merr := setaside.Move(dir)
	if merr != nil {
		return merr
	}
	if err != nil { // the pods can still be made from images that are pulled again
		s.cfg.Log.Error("images were not recovered", "component", cEngine, "error", err)
	}
	s.cfg.Log.Error("containers and images are made anew", "component", cEngine, "cause", cause, "set_aside", aside, "images_recovered", kept)
	s.health.Set(health.ContainerdRecovered, fmt.Sprintf("%v; %d of %d images were recovered", cause, len(kept), len(list)),
		"images that are missing are pulled again, or imported with rivulet ctr")
	if torn { // nothing in it is damaged, and the archive has what is worth having
		if err := os.RemoveAll(aside); err != nil {
			return fmt.Errorf("containerd: %w; look at the disk", err)
		}
	}
	s.tellSetAside()
	return os.WriteFile(s.bootFile(), nil, 0o600)
}

// knownImages are those noted, and those that containerd's database has where it can be read.
func (s *System) knownImages(meta string) ([]images.Image, error) {
	noted, err := images.Load(s.imagesFile())
	now, merr := images.FromContainerd(meta, "k8s.io")
	if merr != nil {
		s.cfg.Log.Warn("images that came in the last seconds may be missing", "component", cEngine, "error", merr)
	} else if len(now) > 0 {
		err = nil // they are all there
	}
	return images.Merge(noted, now), err
}

// The marks of what is on the disk for good: bootFile is gone with a power cut or a
// restart of the machine, syncedFile's time is when all images were last synced.
func (s *System) bootFile() string   { return filepath.Join(s.cfg.Dirs.Run, "booted") }
func (s *System) syncedFile() string { return filepath.Join(s.cfg.Dirs.State, "images.synced") }

// tornLayers is an error if images may lack content since the machine went off.
func (s *System) tornLayers(dir string) error {
	if _, err := os.Stat(s.bootFile()); err == nil {
		return nil // it is still on: what was written is there
	}
	var synced time.Time
	if at, err := os.Stat(s.syncedFile()); err == nil {
		synced = at.ModTime()
	}
	torn, err := images.Torn(filepath.Join(dir, filepath.Dir(snapshotFile)), synced)
	if err == nil && len(torn) > 0 {
		err = fmt.Errorf("%d layers of images were unpacked shortly before the power went", len(torn))
	}
	return err
}

// syncImages makes all images survive a power cut.
func (s *System) syncImages() error {
	begun := time.Now()
	dir, err := os.Open(s.agentDir())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return err
	}
	f, err := os.OpenFile(s.syncedFile(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(os.Chtimes(f.Name(), begun, begun), f.Sync(), f.Close())
}

// containerdServes is called when the node is ready, and so all archives are
// imported: what was recovered is not needed twice, and the old layers hold room
// that pods need. Its databases stay set aside.
func (s *System) containerdServes() {
	if err := os.Remove(s.recoveredImages()); err != nil {
		return // none was recovered, or it is not known to be imported
	}
	for _, aside := range setaside.List(s.agentDir()) {
		if !strings.HasPrefix(filepath.Base(aside), "containerd.") {
			continue
		}
		for _, bulk := range []string{contentDir, "io.containerd.snapshotter.v1.overlayfs/snapshots"} {
			if err := os.RemoveAll(filepath.Join(aside, bulk)); err != nil {
				s.cfg.Log.Warn("old layers could not be removed", "component", cEngine, "error", err)
			}
		}
	}
}

// noteImages keeps the list of images when the node says that it has others.
func (s *System) noteImages(ctx context.Context, node *corev1.Node) {
	var names []string
	for _, i := range node.Status.Images {
		names = append(names, i.Names...)
	}
	slices.Sort(names)
	now := strings.Join(names, "\n")
	if now == s.imagesNoted && (s.syncAgain.IsZero() || time.Now().Before(s.syncAgain)) {
		return
	}
	if err := s.syncImages(); err != nil {
		s.cfg.Log.Warn("images may be lost in a power cut", "component", cNode, "error", err)
		return
	}
	// A layer that was being unpacked just now is synced for certain the next time.
	if s.syncAgain = time.Now().Add(syncPause); now == s.imagesNoted {
		s.syncAgain = time.Time{}
		return
	}
	cmd := exec.CommandContext(ctx, s.exe, "--address", "/run/k3s/containerd/containerd.sock", "--namespace", "k8s.io", "images", "ls")
	cmd.Args[0] = "ctr"
	out, err := cmd.Output()
	list := images.Parse(out)
	if err == nil {
		err = allListed(names, list)
	}
	if err == nil {
		err = images.Save(s.imagesFile(), list)
	}
	if err != nil {
		s.cfg.Log.Debug("the list of images could not be kept", "component", cNode, "error", err)
		return
	}
	s.imagesNoted = now
}

// allListed is an error if the node knows of an image that containerd's list lacks: what was
// recovered may still be on its way into containerd, and a list without it would be all that
// the next recovery knows. The node tells again.
func allListed(names []string, list []images.Image) error {
	for _, name := range names {
		if !strings.Contains(name, "@") && !slices.ContainsFunc(list, func(i images.Image) bool { return i.Name == name }) {
			return fmt.Errorf("the node has image %s, and containerd does not list it", name)
		}
	}
	return nil
}
