package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/health"
	"rivulet/appliance/state/boltcheck"
	"rivulet/appliance/state/durable"
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
	// recoveredImages are imported by the engine like any archive in its folder, in the order of their names; %s is a number
	// for all but the first.
	recoveredImages = "rivulet-recovered%s.tar"
	// lostFile is in a folder that is set aside with images that no archive has: Serves removes nothing in it.
	lostFile = "rivulet.lost"
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
	Health  *health.Tracker
	Log     *slog.Logger

	noted     string    // images of the node when the list was written
	syncAgain time.Time // when to sync images again; zero: not
	wanted    uint64    // the newest layer when the node's images changed
	sure      uint64    // the newest layer of a mark that this process has written
	newest    uint64    // the newest layer at newestAt, for the next mark
	newestAt  time.Time
}

func (c *Containerd) agentDir() string { return paths.Agent(c.State) }
func (c *Containerd) listFile() string { return filepath.Join(c.State, "images.json") }

// archive is the file of the recovery of that number.
func (c *Containerd) archive(number string) string {
	return filepath.Join(c.agentDir(), "images", fmt.Sprintf(recoveredImages, number))
}

// pending are the archives of recoveries of which the engine has not imported all.
func (c *Containerd) pending() []string {
	list, _ := filepath.Glob(c.archive("*")) // the pattern is valid
	return list
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
	var kept []Image
	if err == nil {
		err = Save(c.listFile(), list) // an archive does not contain which ones are shared
	}
	if err == nil {
		kept, err = c.keep(filepath.Join(dir, contentDir), list)
	}
	lost, names := "", []string{}
	for _, i := range list {
		if slices.ContainsFunc(kept, i.same) {
			names = append(names, i.Name)
		} else if i.Kept {
			lost += ", without " + i.Name
		}
	}
	if err != nil || lost != "" {
		if err := durable.Write(filepath.Join(dir, lostFile), nil, 0o600); err != nil { // a full disk keeps no engine down
			c.Log.Warn("the content of lost images is not marked, and goes when the others are imported", "err", err)
		}
	}
	aside, merr := quarantine.Move(dir)
	if merr != nil {
		return merr
	}
	// What is known of the layers goes with them: in the new folder containerd counts from the beginning.
	c.noted, c.syncAgain, c.wanted, c.sure, c.newest, c.newestAt = "", time.Time{}, 0, 0, 0, time.Time{}
	if err != nil { // the pods can still be created from images pulled again
		c.Log.Error("images were not recovered", "err", err)
	}
	c.Log.Error("containers and images are made anew", "cause", cause, "set_aside", aside, "images_recovered", names)
	c.Health.Set(health.ContainerdRecovered, fmt.Sprintf("%v; %d of %d images were recovered%s", cause, len(names), len(list), lost),
		"images of a registry are pulled again; bring the others: rivulet image push FILE")
	if torn && err == nil && lost == "" { // nothing in it is damaged, and the archive has all that is needed
		if err := os.RemoveAll(aside); err != nil {
			return fmt.Errorf("containerd: %w; look at the disk", err)
		}
	}
	c.Health.SetAside(quarantine.All(c.State))
	return os.WriteFile(c.bootFile(), nil, 0o600)
}

// keep writes an archive of the listed images, but for those that an earlier recovery has in one that is still there: of
// these containerd may have imported a part only. It returns all that are in an archive. The newest archive has the highest
// name, so that of two images of one name the newer is imported last.
func (c *Containerd) keep(content string, list []Image) (kept []Image, _ error) {
	pending := c.pending()
	for _, at := range pending {
		has, err := Archived(at)
		if err != nil {
			aside := quarantine.Name(filepath.Join(c.agentDir(), filepath.Base(at)), time.Now()) // the engine imports all in the archive's folder
			c.Log.Warn("an archive of recovered images cannot be read", "err", err, "set_aside", aside)
			if err := durable.Rename(at, aside); err != nil {
				return nil, err
			}
			continue
		}
		kept = append(kept, has...)
	}
	number := ""
	for n := 2; len(pending) > 0 && c.archive(number) <= pending[len(pending)-1]; n++ {
		number = fmt.Sprintf("_%03d", n)
	}
	list = slices.DeleteFunc(slices.Clone(list), func(i Image) bool { return slices.ContainsFunc(kept, i.same) })
	written, err := Archive(content, list, c.archive(number))
	for _, i := range list {
		if slices.Contains(written, i.Name) {
			kept = append(kept, i)
		}
	}
	return kept, err
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

// syncedMark in containerd's folder is the number of the newest layer that is on the disk for sure. It goes with the
// layers: in a new folder containerd counts from the beginning.
const syncedMark = "rivulet.synced"

// Marks of synced data: bootFile disappears with a power cut or a restart of the machine; the time of syncedFile is the
// last sync of all images, for versions without syncedMark.
func (c *Containerd) bootFile() string   { return filepath.Join(c.Run, "booted") }
func (c *Containerd) syncedFile() string { return filepath.Join(c.State, "images.synced") }

// synced returns the number in syncedMark, and without the mark the time of syncedFile.
func (c *Containerd) synced(dir string) (sure uint64, at time.Time) {
	if raw, err := os.ReadFile(filepath.Join(dir, syncedMark)); err == nil {
		sure, _ = strconv.ParseUint(string(raw), 10, 64) // an unreadable one is none
	} else if fi, err := os.Stat(c.syncedFile()); err == nil {
		at = fi.ModTime()
	}
	return sure, at
}

// tornLayers returns an error if images may lack content since the machine went off.
func (c *Containerd) tornLayers(dir string) error {
	if _, err := os.Stat(c.bootFile()); err == nil {
		return nil // no power cut: all writes are there
	}
	sure, at := c.synced(dir)
	torn, err := Torn(filepath.Join(dir, filepath.Dir(snapshotFile)), sure, at)
	if err == nil && len(torn) > 0 {
		err = fmt.Errorf("%d layers of images were unpacked shortly before the power went", len(torn))
	}
	return err
}

// syncImages makes all images survive a power cut, and returns the newest layer. The mark gets the one that was the newest
// a minute ago or earlier: younger ones may still be unpacked.
func (c *Containerd) syncImages() (newest uint64, err error) {
	begun := time.Now()
	dir, err := os.Open(c.agentDir())
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	root := filepath.Join(c.agentDir(), "containerd")
	if newest, err = newestLayer(filepath.Join(root, filepath.Dir(snapshotFile))); err != nil {
		return 0, err
	}
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return 0, err
	}
	f, err := os.OpenFile(c.syncedFile(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	err = errors.Join(os.Chtimes(f.Name(), begun, begun), f.Sync(), f.Close())
	switch {
	case err != nil || !c.newestAt.IsZero() && begun.Sub(c.newestAt) < unsure:
		return newest, err
	case !c.newestAt.IsZero():
		if err := durable.Write(filepath.Join(root, syncedMark), strconv.AppendUint(nil, c.newest, 10), 0o600); err != nil {
			return newest, err
		}
		c.sure = c.newest
	}
	c.newest, c.newestAt = newest, begun
	return newest, nil
}

// Serves is called when the node is ready. Once containerd has all recovered images it removes their archive and the old
// layers, whose space pods need, but for those of a folder with images that are in no archive; a node whose kubelet has
// not reported yet may count as ready before. The old databases stay set aside.
func (c *Containerd) Serves(ctx context.Context) {
	if len(c.pending()) == 0 {
		return // none was recovered
	}
	list, _ := Load(c.listFile())
	out, err := c.ctr(ctx, nil, "images", "ls")
	if err == nil {
		err = c.imported(Parse(out))
	}
	if err != nil {
		c.Log.Debug("recovered images are not imported yet", "err", err)
		return
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
			labels = append(labels, policy.ProvidedLabel+"="+i.Provided)
		}
		if len(labels) == 3 {
			continue
		}
		if _, err := c.ctr(ctx, nil, labels...); err != nil {
			c.Log.Warn("a recovered image is not shared with peers, or not kept, as it was", "image", i.Name, "err", err)
		}
	}
	for _, at := range c.pending() {
		if err := os.Remove(at); err != nil {
			return // it would be imported again
		}
	}
	for _, aside := range quarantine.List(c.agentDir()) {
		if !strings.HasPrefix(filepath.Base(aside), "containerd.") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(aside, lostFile)); !errors.Is(err, os.ErrNotExist) {
			continue // a person may still find an image in it
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
	newest, err := c.syncImages()
	if err != nil {
		c.Log.Warn("images may be lost in a power cut", "err", err)
		return
	}
	// The next sync includes a layer that is being unpacked now.
	if c.syncAgain = time.Now().Add(syncPause); now == c.noted {
		if c.sure >= c.wanted {
			c.syncAgain = time.Time{}
		}
		return
	}
	c.wanted = newest
	out, err := c.ctr(ctx, nil, "images", "ls")
	list := Parse(out)
	if err == nil {
		err = c.complete(names, list)
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

// complete returns an error if an image may be missing in containerd's list, which is no reason to forget it: the node
// reports it, or it is in the archive of a recovery that the engine is still importing. The next recovery would lose it.
func (c *Containerd) complete(names []string, list []Image) error {
	if err := c.imported(list); err != nil {
		return err
	}
	return allListed(names, list)
}

// imported returns an error if containerd's list lacks an image of an archive, or has an older one of that name. The
// archives tell, not the recoveries that wrote them: the power may have gone again since.
func (c *Containerd) imported(list []Image) error {
	var before []Image // in the archives so far
	for _, archive := range c.pending() {
		has, err := Archived(archive)
		if err != nil {
			return err
		}
		before = slices.DeleteFunc(before, func(i Image) bool { return slices.ContainsFunc(has, i.same) })
		for _, i := range has {
			at := slices.IndexFunc(list, func(l Image) bool { return l.Name == i.Name })
			if at < 0 || slices.ContainsFunc(before, list[at].same) {
				return fmt.Errorf("image %s of %s is not in containerd yet", i.Name, archive)
			}
		}
		before = append(before, has...)
	}
	return nil
}

// allListed returns an error if the node reports an image that containerd's list lacks. The node reports again.
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
