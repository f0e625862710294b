package upgrade

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/appliance/health"
	"rivulet/appliance/lifetime/backup"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/version"
	"rivulet/fabric"
	"rivulet/fabric/peer"
)

var made = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func TestOldVersions(t *testing.T) {
	for _, tt := range []struct {
		days  int
		image bool
		want  health.Severity
		words string
	}{
		{0, true, "", ""}, {-400, true, "", ""}, {119, false, "", ""},
		{120, false, health.Info, "v1.2.0 is of 2026-12-01, 120 days ago; what was mended since is open here"},
		{364, true, health.Info, "in the kernel and the system too"}, {365, true, health.Warning, "365 days"}, {800, false, health.Warning, "800 days"},
	} {
		f := oldVersion("v1.2.0", made, made.AddDate(0, 0, tt.days), tt.image)
		if f.severity != tt.want || !strings.Contains(f.text, tt.words) || (f.text == "") != (f.cure == "") || tt.image && f.text != "" && !strings.Contains(f.cure, ".bundle") {
			t.Errorf("after %d days: %+v", tt.days, f)
		}
	}
}

func TestPeersWithNewerVersions(t *testing.T) {
	view := func(name, version string, state peer.State, how string) peer.View {
		return peer.View{Record: peer.Record{Name: name, Version: version, Trust: peer.Trust{How: how}}, State: state}
	}
	for name, tt := range map[string]struct {
		own   string
		peers []peer.View
		want  string
	}{
		"nobody":           {"v1.2.0", nil, ""},
		"older and equal":  {"v1.2.0", []peer.View{view("b", "v1.1.9", peer.Connected, peer.TrustLAN), view("c", "v1.2.0", peer.Connected, peer.TrustLAN)}, ""},
		"the newest":       {"v1.2.0", []peer.View{view("b", "v1.3.0", peer.Connected, peer.TrustLAN), view("c", "v1.10.0", peer.Connected, peer.TrustLAN), view("d", "v1.4.0", peer.Connected, peer.TrustLAN)}, "c says that it runs v1.10.0; here runs v1.2.0"},
		"not connected":    {"v1.2.0", []peer.View{view("b", "v1.3.0", peer.Lost, peer.TrustLAN)}, ""},
		"a worker":         {"v1.2.0", []peer.View{view("b", "v1.3.0", peer.Connected, peer.TrustWorker)}, ""},
		"nonsense":         {"v1.2.0", []peer.View{view("b", "v99999999999999999999.0.0", peer.Connected, peer.TrustLAN), view("c", "newest\x1b[2J", peer.Connected, peer.TrustLAN)}, ""},
		"a build of today": {"dev", []peer.View{view("b", "v1.3.0", peer.Connected, peer.TrustLAN)}, ""},
	} {
		if f := newerPeer(tt.own, tt.peers, false); f.text != tt.want || f.text != "" && f.severity != health.Info {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestOldBackups(t *testing.T) {
	for name, tt := range map[string]struct {
		last backup.Last
		days int
		want health.Severity
	}{
		"not looked yet":      {backup.Last{}, 900, ""},
		"a new device":        {backup.Last{Since: made}, 29, ""},
		"a month without":     {backup.Last{Since: made}, 30, health.Info},
		"a year without":      {backup.Last{Since: made}, 365, health.Warning},
		"saved":               {backup.Last{Made: made, Since: made.AddDate(-3, 0, 0)}, 179, ""},
		"saved half a year":   {backup.Last{Made: made}, 180, health.Info},
		"saved two years ago": {backup.Last{Made: made}, 730, health.Warning},
	} {
		if f := oldBackup(tt.last, made.AddDate(0, 0, tt.days)); f.severity != tt.want || (f.text == "") != (f.cure == "") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

type fixed clock.Status

func (f *fixed) Status() clock.Status { return clock.Status(*f) }

// Two years of a device: a clock that nobody confirms is no reason to report anything; what was said goes with the backup.
func TestTwoYearsOfADevice(t *testing.T) {
	version.BuildTime = "1796083200" // 2026-12-01
	t.Cleanup(func() { version.BuildTime = "" })
	now := &fixed{Plausible: true}
	a := Age{State: t.TempDir(), Image: true, Clock: now, Health: &health.Tracker{}, Fabric: &atomic.Pointer[fabric.Fabric]{}, Log: slog.New(slog.DiscardHandler)}
	look := func(days int, right bool, want ...string) {
		t.Helper()
		now.Now, now.Reference = made.AddDate(0, 0, days), ""
		if right {
			now.Reference = clock.FromNTP
		}
		a.check()
		var got []string
		for _, p := range a.Health.Problems() {
			got = append(got, p.Code+" "+string(p.Severity))
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("after %d days: %v, want %v", days, got, want)
		}
	}
	look(0, true)
	look(700, false)
	look(31, true, "backup-old info")
	look(130, true, "backup-old info", "version-old info")
	look(730, true, "backup-old warning", "version-old warning")
	if err := (backup.Last{Made: now.Now}).Save(a.State); err != nil {
		t.Fatal(err)
	}
	look(731, false, "version-old warning")
}
