package doctor

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
)

var (
	diskSpace = Probe{Kind: health.DiskSpace, Title: "free space and inodes", Every: soon, Run: probeDiskSpace}
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

func probeDiskSpace(_ context.Context, e *Env) Result {
	dir := e.existing(e.State)
	fs, err := e.Statfs(e.path(dir))
	if err != nil {
		return Failf("look at the disk: dmesg", "%s: %v", dir, err)
	}
	return evaluateSpace(dir, fs)
}

func evaluateSpace(dir string, fs unix.Statfs_t) Result {
	block := uint64(fs.Bsize)
	free, all := fs.Bavail*block, fs.Blocks*block
	if all == 0 {
		return Skipf("%s has no size", dir)
	}
	percent := free * 100 / all
	if fs.Files > 0 { // some file systems have no such limit
		switch inodes := fs.Ffree * 100 / fs.Files; {
		case inodes < inodesMin:
			return Failf(freeImages+"; or: delete small files", "%s: %d of %d inodes are left, no file can be made soon", dir, fs.Ffree, fs.Files)
		case inodes < inodesWarn:
			return Warnf(freeImages+"; or: delete small files", "%s: %d %% of the inodes are left", dir, inodes)
		}
	}
	switch {
	case percent < spaceEvict:
		return Failf(fullCure, "%s: %s of %s (%d %%) are free; below %d %% the kubelet throws pods out", dir, size(free), size(all), percent, spaceEvict)
	case free < spaceMin:
		return Failf(fullCure, "%s: %s are free; databases and logs need more", dir, size(free))
	case percent < spaceImages:
		return Warnf(fullCure, "%s: %s of %s (%d %%) are free; the kubelet deletes unused images now, and pods below %d %%", dir, size(free), size(all), percent, spaceEvict)
	}
	return Passf("%s: %s of %s (%d %%) are free", dir, size(free), size(all), percent)
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
