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

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/boltfile"
	"rivulet/appliance/containers"
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
	if cause == nil {
		return nil
	}
	if err := containers.End(ctx); err != nil {
		return err
	}
	aside, err := setaside.Move(dir)
	if err != nil {
		return err
	}
	list, err := images.Load(s.imagesFile())
	var kept []string
	if err == nil {
		kept, err = images.Archive(filepath.Join(aside, contentDir), list, s.recoveredImages())
	}
	if err != nil { // the pods can still be made from images that are pulled again
		s.cfg.Log.Error("images were not recovered", "component", cEngine, "error", err)
	}
	s.cfg.Log.Error("containerd's database was damaged; it begins anew", "component", cEngine, "cause", cause, "set_aside", aside, "images_recovered", kept)
	s.health.Set(health.ContainerdRecovered, fmt.Sprintf("%v; all pods were made again, %d of %d images were recovered", cause, len(kept), len(list)),
		"look at the disk's health; images that are missing are pulled again, or imported with rivulet ctr")
	s.tellSetAside()
	return nil
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
	if now == s.imagesNoted {
		return
	}
	cmd := exec.CommandContext(ctx, s.exe, "--address", "/run/k3s/containerd/containerd.sock", "--namespace", "k8s.io", "images", "ls")
	cmd.Args[0] = "ctr"
	out, err := cmd.Output()
	if err == nil {
		err = images.Save(s.imagesFile(), images.Parse(out))
	}
	if err != nil {
		s.cfg.Log.Debug("the list of images could not be kept", "component", cNode, "error", err)
		return
	}
	s.imagesNoted = now
}
