package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/health"
	"rivulet/appliance/state/boltcheck"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/quarantine"
	"rivulet/offload/policy"
)

// Socket is that of k3s's containerd.
const Socket = "/run/k3s/containerd/containerd.sock"

// Parts of containerd's folder.
const (
	metaFile     = "io.containerd.metadata.v1.bolt/meta.db"
	snapshotFile = "io.containerd.snapshotter.v1.overlayfs/metadata.db"
	contentDir   = "io.containerd.content.v1.content"
	// recoveredImages is imported by the engine like any archive in its folder.
	recoveredImages = "rivulet-recovered.tar"
)

// syncPause is the delay of the second sync of images: longer than unsure of Torn.
const syncPause = 70 * time.Second

// Containerd protects containerd's databases and images from outside. Its fields are set before use. Prepare is called
// while no containerd runs, Serves and Note by one goroutine.
type Containerd struct {
	State, Run string // Rivulet's folders
	Executable string // this program, which is also ctr
	// EndPods ends all pods of this machine.
	EndPods func(context.Context) error
	// Report updates what is shown of files set aside.
	Report func()
	Health *health.Tracker
	Log    *slog.Logger

	kept      []string  // images of the last recovery
	noted     string    // images of the node when the list was written
	syncAgain time.Time // when to sync images again; zero: not
}

func (c *Containerd) agentDir() string { return paths.Agent(c.State) }
func (c *Containerd) listFile() string { return filepath.Join(c.State, "images.json") }
func (c *Containerd) recovered() string {
	return filepath.Join(c.agentDir(), "images", recoveredImages)
}

// Prepare is called before containerd opens its databases. A damaged one would end the engine's process at every start,
// so containerd then starts with new ones: pods are created again from the cluster's database, images from the blobs
// that are still there.
func (c *Containerd) Prepare(ctx context.Context) error {
	dir := filepath.Join(c.agentDir(), "containerd")
	var cause error
	for _, f := range []string{metaFile, snapshotFile} {
		if err := boltcheck.Check(filepath.Join(dir, f)); errors.Is(err, boltcheck.ErrDamaged) {
			cause = errors.Join(cause, fmt.Errorf("%s: %w", filepath.Base(f), err))
		} else if err != nil {
			return fmt.Errorf("containerd's %s: %w; look at the disk", f, err)
		}
	}
	torn := false
	if cause == nil {
		cause = c.tornLayers(dir)
		torn = cause != nil
	}
	if cause == nil {
		return os.WriteFile(c.bootFile(), nil, 0o600)
	}
	if err := c.EndPods(ctx); err != nil {
		return err
	}
	// The archive is written before the old folder is moved: after another power cut all of this is repeated.
	list, err := c.knownImages(filepath.Join(dir, metaFile))
	var kept []string
	if err == nil {
		err = Save(c.listFile(), list) // an archive does not contain which ones are shared
	}
	if err == nil {
		kept, err = Archive(filepath.Join(dir, contentDir), list, c.recovered())
	}
	c.kept = kept
	aside, merr := quarantine.Move(dir)
	if merr != nil {
		return merr
	}
	if err != nil { // the pods can still be created from images pulled again
		c.Log.Error("images were not recovered", "err", err)
	}
	c.Log.Error("containers and images are made anew", "cause", cause, "set_aside", aside, "images_recovered", kept)
	lost := ""
	for _, i := range list {
		if i.Kept && !slices.Contains(kept, i.Name) {
			lost += ", without " + i.Name
		}
	}
	c.Health.Set(health.ContainerdRecovered, fmt.Sprintf("%v; %d of %d images were recovered%s", cause, len(kept), len(list), lost),
		"images of a registry are pulled again; bring the others: rivulet image push FILE")
	if torn { // nothing in it is damaged, and the archive has all that is needed
		if err := os.RemoveAll(aside); err != nil {
			return fmt.Errorf("containerd: %w; look at the disk", err)
		}
	}
	c.Report()
	return os.WriteFile(c.bootFile(), nil, 0o600)
}

// knownImages are those in the list, and those in containerd's database if it can be read.
func (c *Containerd) knownImages(meta string) ([]Image, error) {
	noted, err := Load(c.listFile())
	now, merr := FromContainerd(meta, "k8s.io")
	if merr != nil {
		c.Log.Warn("images that came in the last seconds may be missing", "err", merr)
	} else if len(now) > 0 {
		err = nil // all images are there
	}
	return Merge(noted, now), err
}

// Marks of synced data: bootFile disappears with a power cut or a restart of the machine; the time of syncedFile is the
// last sync of all images.
func (c *Containerd) bootFile() string   { return filepath.Join(c.Run, "booted") }
func (c *Containerd) syncedFile() string { return filepath.Join(c.State, "images.synced") }

// tornLayers returns an error if images may lack content since the machine went off.
func (c *Containerd) tornLayers(dir string) error {
	if _, err := os.Stat(c.bootFile()); err == nil {
		return nil // no power cut: all writes are there
	}
	var synced time.Time
	if at, err := os.Stat(c.syncedFile()); err == nil {
		synced = at.ModTime()
	}
	torn, err := Torn(filepath.Join(dir, filepath.Dir(snapshotFile)), synced)
	if err == nil && len(torn) > 0 {
		err = fmt.Errorf("%d layers of images were unpacked shortly before the power went", len(torn))
	}
	return err
}

// syncImages makes all images survive a power cut.
func (c *Containerd) syncImages() error {
	begun := time.Now()
	dir, err := os.Open(c.agentDir())
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return err
	}
	f, err := os.OpenFile(c.syncedFile(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(os.Chtimes(f.Name(), begun, begun), f.Sync(), f.Close())
}

// Serves is called when the node is ready. Once containerd has all recovered images it removes their archive and the old
// layers, whose space pods need; a node whose kubelet has not reported yet may count as ready before. The old databases
// stay set aside.
func (c *Containerd) Serves(ctx context.Context) {
	if _, err := os.Stat(c.recovered()); err != nil {
		return // none was recovered
	}
	list, _ := Load(c.listFile())
	out, err := c.ctr(ctx, nil, "images", "ls")
	if err != nil || allListed(c.kept, Parse(out)) != nil {
		return // not yet
	}
	for _, i := range list {
		labels := []string{"images", "label", i.Name}
		if i.Shared {
			labels = append(labels, policy.ShareLabel+"=true")
		}
		if i.Kept {
			labels = append(labels, keptLabel, k3sLabel+"=") // empty: removes the label
		}
		if i.Provided != "" {
			labels = append(labels, providedLabel+"="+i.Provided)
		}
		if len(labels) == 3 {
			continue
		}
		if _, err := c.ctr(ctx, nil, labels...); err != nil {
			c.Log.Warn("a recovered image is not shared with peers, or not kept, as it was", "image", i.Name, "err", err)
		}
	}
	if err := os.Remove(c.recovered()); err != nil {
		return // it may not be imported
	}
	for _, aside := range quarantine.List(c.agentDir()) {
		if !strings.HasPrefix(filepath.Base(aside), "containerd.") {
			continue
		}
		for _, bulk := range []string{contentDir, "io.containerd.snapshotter.v1.overlayfs/snapshots"} {
			if err := os.RemoveAll(filepath.Join(aside, bulk)); err != nil {
				c.Log.Warn("old layers could not be removed", "err", err)
			}
		}
	}
}

// Note updates the list of images when the node reports others.
func (c *Containerd) Note(ctx context.Context, node *corev1.Node) {
	var names []string
	for _, i := range node.Status.Images {
		names = append(names, i.Names...)
	}
	slices.Sort(names)
	now := strings.Join(names, "\n")
	if now == c.noted && (c.syncAgain.IsZero() || time.Now().Before(c.syncAgain)) {
		return
	}
	if err := c.syncImages(); err != nil {
		c.Log.Warn("images may be lost in a power cut", "err", err)
		return
	}
	// The next sync includes a layer that is being unpacked now.
	if c.syncAgain = time.Now().Add(syncPause); now == c.noted {
		c.syncAgain = time.Time{}
		return
	}
	out, err := c.ctr(ctx, nil, "images", "ls")
	list := Parse(out)
	if err == nil {
		err = allListed(names, list)
	}
	if err == nil {
		err = Save(c.listFile(), list)
	}
	if err != nil {
		c.Log.Debug("the list of images could not be kept", "err", err)
		return
	}
	c.noted = now
}

// allListed returns an error if the node reports an image that containerd's list lacks: recovered images may not be
// imported yet, and the next recovery would lose them. The node reports again.
func allListed(names []string, list []Image) error {
	for _, name := range names {
		if !strings.Contains(name, "@") && !slices.ContainsFunc(list, func(i Image) bool { return i.Name == name }) {
			return fmt.Errorf("the node has image %s, and containerd does not list it", name)
		}
	}
	return nil
}

// Architectures returns the architectures of images whose index is in containerd here. It reads two kinds of small
// files, and sends no request.
func (c *Containerd) Architectures() (map[string][]string, error) {
	list, err := Load(c.listFile())
	if err != nil {
		return nil, err
	}
	return Architectures(filepath.Join(c.agentDir(), "containerd", contentDir), list), nil
}
