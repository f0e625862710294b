package upgrade

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	semver "k8s.io/apimachinery/pkg/util/version"

	"rivulet/appliance/health"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/version"
	"rivulet/fabric"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
)

const (
	day = 24 * time.Hour
	// versionOld is the age of a version that is worth knowing, backupNone the time without any backup, backupOld the age
	// of the last one. From tooOld on each is a warning.
	versionOld, backupNone, backupOld, tooOld = 120 * day, 30 * day, 180 * day, 365 * day
	// ageCheck is the interval of checks. The first ones may come before the clock is confirmed.
	ageCheck = 10 * time.Minute
)

// Clock is the device's.
type Clock interface{ Status() clock.Status }

// Age reports what years do to a device that nobody looks after: an old version, peers with a newer one, no backup. It
// asks nobody on the Internet, and goes by a clock only while a time service or peers confirm it. It alone writes the file
// of the last backup until there is one.
type Age struct {
	State string
	// Image: the kernel and the system belong to the version. Worker: another device has the cluster's objects.
	Image, Worker bool
	Clock         Clock
	Fabric        *atomic.Pointer[fabric.Fabric]
	Health        *health.Tracker
	Log           *slog.Logger
}

// Run checks now and then until ctx ends.
func (a Age) Run(ctx context.Context) {
	for {
		a.check()
		if !changes.Wait(ctx, ageCheck) {
			return
		}
	}
}

func (a Age) check() {
	st := a.Clock.Status()
	if version.BuildTime != "" {
		a.report(health.VersionOld, oldVersion(version.Version, version.Built(), st.Now, a.Image), st.Right())
	}
	if f := a.Fabric.Load(); f != nil {
		a.report(health.VersionBehind, newerPeer(version.Version, f.Peers(), a.Image), true)
	}
	if a.Worker {
		return
	}
	last, err := backup.LoadLast(a.State)
	if err == nil && last == (backup.Last{}) && st.Right() {
		last.Since = st.Now
		err = last.Save(a.State)
	}
	if err != nil {
		a.Log.Warn("nobody is reminded of backups", "err", err)
		return
	}
	a.report(health.BackupOld, oldBackup(last, st.Now), st.Right())
}

// finding is the text and the cure of a problem; no text is none.
type finding struct {
	severity   health.Severity
	text, cure string
}

// report sets a problem only if it is right, and clears one in any case.
func (a Age) report(k *health.Kind, f finding, right bool) {
	switch {
	case f.text == "":
		a.Health.Clear(k)
	case right:
		a.Health.SetAt(k, f.severity, "", f.text, f.cure)
	}
}

func severityOf(age time.Duration) health.Severity {
	if age >= tooOld {
		return health.Warning
	}
	return health.Info
}

func oldVersion(name string, built, now time.Time, image bool) (f finding) {
	age := now.Sub(built)
	if age < versionOld {
		return f
	}
	f = finding{severityOf(age), fmt.Sprintf("%s is of %s, %d days ago; what was mended since is open here", name, built.Format(time.DateOnly), age/day), upgradeCure(image)}
	if image {
		f.text += ", in the kernel and the system too, which nothing else renews"
	}
	return f
}

// newerPeer goes by what peers say, so it is only worth knowing.
func newerPeer(name string, peers []peer.View, image bool) (f finding) {
	own, err := semver.ParseSemantic(name)
	if err != nil {
		return f // of no release
	}
	newest := own
	for _, v := range peers {
		its, err := semver.ParseSemantic(v.Version)
		if err != nil || v.State != peer.Connected || v.Trust.Node() || !newest.LessThan(its) {
			continue
		}
		newest = its
		f = finding{health.Info, fmt.Sprintf("%s says that it runs v%s; here runs %s", v.Name, its, name), upgradeCure(image)}
	}
	return f
}

func upgradeCure(image bool) string {
	if image {
		return "get the newest bundle of the image, then: sudo rivulet upgrade FILE.bundle"
	}
	return "get the newest release, then: sudo rivulet upgrade FILE"
}

func oldBackup(last backup.Last, now time.Time) (f finding) {
	const cure = "save it elsewhere: sudo rivulet backup /media/usb/cluster.backup; or: sudo rivulet backup - | ssh HOST 'cat > cluster.backup'"
	switch age := now.Sub(last.Made); {
	case last.Made.IsZero() && last.Since.IsZero():
	case last.Made.IsZero():
		if age = now.Sub(last.Since); age >= backupNone {
			f = finding{severityOf(age), fmt.Sprintf("in %d days nobody has saved this cluster; it is lost with its disk", age/day), cure}
		}
	case age >= backupOld:
		f = finding{severityOf(age), fmt.Sprintf("the last backup is of %s, %d days ago; what came since is lost with the disk", last.Made.Format(time.DateOnly), age/day), cure}
	}
	return f
}
