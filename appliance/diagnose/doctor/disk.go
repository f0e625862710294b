package doctor

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
)

var (
	diskSpace = Probe{Kind: health.DiskSpace, Title: "free space and inodes", Every: soon, Run: probeDiskSpace}
	logSpace  = Probe{Kind: health.LogSpace, Title: "room for the logs of pods", Every: often, Run: probeLogSpace}
	diskSpeed = Probe{Kind: health.DiskSpeed, Title: "speed of the disk (fsync)", Run: probeDiskSpeed}
)

// The kubelet evicts pods below 5 % of free space (nodefs.available and imagefs.available, as k3s sets them) and
// deletes unused images below 15 %. It does not check inodes.
const (
	spaceEvict, spaceImages  = 5, 15 // per cent
	spaceMin                 = 200 << 20
	inodesMin, inodesWarn    = 1, 5 // per cent
	syncBlocks               = 64
	syncTime                 = 2500 * time.Millisecond
	syncSlow, syncUnbearable = 100 * time.Millisecond, time.Second
	freeImages               = "rivulet image rm --unused"
	fullCure                 = freeImages + "; or: delete pushed images and files that are not needed; or: use a bigger card"
)

// Folders of the kubelet, which are there wherever the state is: emptyDirs of pods, and what their containers print.
const kubeletDir, logsDir = "/var/lib/kubelet", "/var/log/pods"

// contents is what fills a file system: what the kubelet does when it is nearly full, and what a user can do then, also
// where the inodes are used up.
type contents struct{ happens, cure, inodesCure string }

var (
	images    = contents{"the kubelet deletes unused images now, and pods below", fullCure, freeImages + "; or: delete small files"}
	emptyDirs = contents{"the kubelet throws pods out below", dirsCure, dirsCure}
)

const dirsCure = "find the pod whose emptyDirs fill it: du -sh " + kubeletDir + "/pods/*; or: delete files on the same disk that are not needed"

func probeDiskSpace(_ context.Context, e *Env) Result {
	state := e.space(e.State, images)
	if state.Status == Fail || e.together(e.State, kubeletDir) {
		return state
	}
	if kubelet := e.space(kubeletDir, emptyDirs); kubelet.Status == Fail || state.Status != Warn && kubelet.Status == Warn {
		return kubelet
	}
	return state
}

func (e *Env) space(path string, c contents) Result {
	dir := e.existing(path)
	fs, err := e.Statfs(e.path(dir))
	if err != nil {
		return Failf("look at the disk: dmesg", "%s: %v", dir, err)
	}
	return c.evaluate(dir, fs)
}

func (c contents) evaluate(dir string, fs unix.Statfs_t) Result {
	block := uint64(fs.Bsize)
	free, all := fs.Bavail*block, fs.Blocks*block
	if all == 0 {
		return Skipf("%s has no size", dir)
	}
	percent := free * 100 / all
	if fs.Files > 0 { // some file systems have no such limit
		switch inodes := fs.Ffree * 100 / fs.Files; {
		case inodes < inodesMin:
			return Failf(c.inodesCure, "%s: %d of %d inodes are left, no file can be made soon", dir, fs.Ffree, fs.Files)
		case inodes < inodesWarn:
			return Warnf(c.inodesCure, "%s: %d %% of the inodes are left", dir, inodes)
		}
	}
	switch {
	case percent < spaceEvict:
		return Failf(c.cure, "%s: %s of %s (%d %%) are free; below %d %% the kubelet throws pods out", dir, size(free), size(all), percent, spaceEvict)
	case free < spaceMin:
		return Failf(c.cure, "%s: %s are free; databases and logs need more", dir, size(free))
	case percent < spaceImages:
		return Warnf(c.cure, "%s: %s of %s (%d %%) are free; %s %d %%", dir, size(free), size(all), percent, c.happens, spaceEvict)
	}
	return Passf("%s: %s of %s (%d %%) are free", dir, size(free), size(all), percent)
}

// logsMin is room for the logs of some 30 containers, 15 MB each (containerLogMaxSize of the engine).
const logsMin = 500 << 20

// probeLogSpace looks at a file system of its own for logs. The kubelet does not: it throws nobody out when that is full,
// and no program of the machine can log any more.
func probeLogSpace(_ context.Context, e *Env) Result {
	if m, _ := e.mountOf(e.existing(e.State)); m.inMemory() {
		return Skipf("%s is in memory, too", e.State)
	}
	if e.together(e.State, logsDir) {
		return Passf("%s is on the disk of %s", logsDir, e.State)
	}
	dir := e.existing(logsDir)
	fs, err := e.Statfs(e.path(dir))
	if err != nil || fs.Blocks == 0 {
		return Skipf("the size of %s is not known", dir)
	}
	block := uint64(fs.Bsize)
	free, all := fs.Bavail*block, fs.Blocks*block
	m, _ := e.mountOf(dir)
	switch {
	case free*100/all < spaceEvict:
		return Failf("delete old logs: journalctl --vacuum-size=10M; see what else fills it: du -xh "+m.at+" | sort -h | tail", "%s: %s of %s are free; without room no program of this machine can log", m.at, size(free), size(all))
	case m.inMemory():
		return Warnf(e.logsCure(m), "%s is in memory and takes %s at most; each container of a pod may write 15 MB there", m.at, size(all))
	case all < logsMin:
		return Warnf("give "+m.at+" a bigger disk, or take it out of /etc/fstab: nano /etc/fstab; reboot", "%s has %s; each container of a pod may write 15 MB there", m.at, size(all))
	}
	return Passf("%s: %s of %s are free", m.at, size(free), size(all))
}

func (m mount) inMemory() bool {
	return m.kind == "tmpfs" || m.kind == "ramfs" || strings.HasPrefix(m.device, "/dev/zram")
}

// logsCure is for the program that has put logs into memory.
func (e *Env) logsCure(m mount) string {
	switch {
	case e.exists("/etc/log2ram.conf"):
		return "systemctl disable log2ram; reboot"
	case e.exists("/etc/default/armbian-ramlog"):
		return "sed -i s/^ENABLED=true/ENABLED=false/ /etc/default/armbian-ramlog; reboot"
	}
	return "take " + m.at + " out of /etc/fstab: nano /etc/fstab; reboot"
}

func probeDiskSpeed(ctx context.Context, e *Env) Result {
	dir := e.existing(e.State)
	if st, err := e.Statfs(e.path(dir)); err == nil && st.Type == unix.TMPFS_MAGIC {
		return Skipf("%s is in memory", dir)
	}
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	took, err := e.Fsync(ctx, e.path(dir), syncBlocks)
	if len(took) == 0 {
		switch err {
		case nil:
			return Skipf("nothing was measured")
		default:
			if unixPermission(err) {
				return Skipf("%s may be written by root only", dir)
			}
			return Failf("look at the disk: space (df), read-only mount (mount), errors (dmesg)", "%s cannot be written: %v", dir, err)
		}
	}
	return evaluateSpeed(took)
}

// evaluateSpeed checks the slow end: the cluster waits for its datastore, which waits for the disk. At 100 ms small
// requests queue; at 1 s leases are not renewed in time and parts of Kubernetes restart.
func evaluateSpeed(took []time.Duration) Result {
	slices.Sort(took)
	at := func(percent int) time.Duration {
		return took[min(len(took)-1, len(took)*percent/100)].Round(10 * time.Microsecond)
	}
	const cure = "use a better card (class A2) or, better, a disk on USB or NVMe; a card that has become slow is about to fail"
	switch p99 := at(99); {
	case p99 >= syncUnbearable:
		return Failf(cure, "99 %% of %d synced writes took up to %s (half of them %s): Kubernetes will give up waiting", len(took), p99, at(50))
	case p99 >= syncSlow:
		return Warnf(cure, "99 %% of %d synced writes took up to %s (half of them %s)", len(took), p99, at(50))
	default:
		return Passf("99 %% of %d synced writes took up to %s, half of them %s", len(took), p99, at(50))
	}
}
