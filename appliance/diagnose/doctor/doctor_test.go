package doctor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/health"
)

// Every probe runs on a machine with nothing in it, says something, and offers a cure where it minds.
func TestEveryProbeOnAnEmptyMachine(t *testing.T) {
	e := machine(t, nil)
	rep := Run(t.Context(), e.Env, Probes())
	if len(rep.Findings) < 25 {
		t.Fatalf("only %d probes", len(rep.Findings))
	}
	for i, f := range rep.Findings {
		bad := f.Status == Warn || f.Status == Fail
		if f.Name != probes[i].Name() || f.Title == "" || f.Text == "" || bad != (f.Cure != "") || strings.Contains(f.Text, "probe itself") {
			t.Errorf("%+v", f)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Probes() {
		if seen[p.Name()] {
			t.Errorf("two probes are called %s", p.Name())
		}
		seen[p.Name()] = true
	}
}

func TestFindKeepsTheOrderOfTheReport(t *testing.T) {
	got, err := Find([]string{"tun", "memory"})
	if err != nil || len(got) != 2 || got[0].Name() != "memory" {
		t.Errorf("%v %v", got, err)
	}
	if _, err := Find([]string{"tun", "nonsense"}); err == nil || !strings.Contains(err.Error(), "doctor --list") {
		t.Errorf("%v", err)
	}
}

// A probe that hangs or panics costs its own answer only.
func TestBadProbesHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		defer close(stuck)
		hangs := Probe{Kind: health.Tun, Run: func(context.Context, *Env) Result { <-stuck; return Passf("") }}
		heeds := Probe{Kind: health.DNS, Run: func(ctx context.Context, _ *Env) Result { <-ctx.Done(); return Warnf("wait", "slow") }}
		panics := Probe{Kind: health.LAN, Run: func(context.Context, *Env) Result { panic("no") }}
		begun := time.Now()
		rep := Run(t.Context(), &Env{Now: time.Now}, []Probe{hangs, heeds, panics})
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("took %s", took)
		}
		for i, want := range []string{"no answer within", "slow", "the probe itself failed: no"} {
			if f := rep.Findings[i]; f.Status != Warn || !strings.Contains(f.Text, want) {
				t.Errorf("%+v, want %q", f, want)
			}
		}
	})
}

func TestMendDoesWhatIsWrongAndGoesOnAfterFailures(t *testing.T) {
	var did, said []string
	fix := func(name string, err error) *Fix {
		return &Fix{Says: "mends " + name, Reboot: true, Do: func(context.Context) error { did = append(did, name); return err }}
	}
	rep := Report{Findings: []Finding{
		{Name: "a", Result: Result{Status: Fail, Fix: both(fix("a", errors.New("no")), nil, fix("a2", nil))}},
		{Name: "b", Result: Result{Status: Pass, Fix: fix("b", nil)}},
		{Name: "c", Result: Result{Status: Warn, Fix: fix("c", nil)}},
		{Name: "d", Result: Result{Status: Fail}},
	}}
	got := Repair(t.Context(), rep, func(name, says string) { said = append(said, name+" "+says) })
	if !slices.Equal(did, []string{"a", "a2", "c"}) || !slices.Equal(said, []string{"a mends a; mends a2", "c mends c"}) {
		t.Errorf("did %v, said %v", did, said)
	}
	if len(got) != 2 || got[0].Error == "" || got[0].Reboot || got[1].Error != "" || !got[1].Reboot {
		t.Errorf("%+v", got)
	}
}

func TestFindingsBecomeHealth(t *testing.T) {
	var tr health.Tracker
	tell := func(s Status) {
		Report{Findings: []Finding{{kind: health.Tun, Result: Result{Status: s, Text: "x", Cure: "y"}}}}.Report(&tr)
	}
	for _, tc := range []struct {
		status Status
		want   health.Severity
	}{{Fail, health.Error}, {Warn, health.Warning}, {Pass, ""}, {Fail, health.Error}, {Skip, ""}} {
		tell(tc.status)
		got := health.Severity("")
		if p := tr.Problems(); len(p) == 1 && p[0].Code == "tun" {
			got = p[0].Severity
		}
		if got != tc.want {
			t.Errorf("%s became %q, want %q", tc.status, got, tc.want)
		}
	}
}

// The supervisor asks soon again what is wrong, and at once when told to.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		var asked atomic.Int32
		broken.Store(true)
		saved := probes
		defer func() { probes = saved }()
		probes = []Probe{
			{Kind: health.Tun, Every: time.Hour, Run: func(context.Context, *Env) Result {
				asked.Add(1)
				if broken.Load() {
					return Failf("y", "x")
				}
				return Passf("x")
			}},
			{Kind: health.DNS, Run: func(context.Context, *Env) Result { t.Error("asked, yet it names no interval"); return Passf("x") }},
		}
		var tr health.Tracker
		ready := make(chan struct{}, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		w := NewWatcher(&tr, t.TempDir(), t.TempDir(), netip.Addr{}, nil)
		go func() {
			defer close(done)
			w.watch(ctx, func() { ready <- struct{}{} })
		}()
		<-ready
		if len(tr.Problems()) != 1 {
			t.Fatalf("%v", tr.Problems())
		}
		broken.Store(false)
		time.Sleep(atOnce + time.Second) // fake time
		synctest.Wait()
		if len(tr.Problems()) != 0 {
			t.Errorf("mended, and still there after %s", atOnce)
		}
		before := asked.Load()
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if asked.Load() != before {
			t.Errorf("asked %d times within its hour", asked.Load()-before)
		}
		w.Again()
		synctest.Wait()
		if asked.Load() != before+1 {
			t.Errorf("told to look: asked %d times", asked.Load()-before)
		}
		cancel()
		<-done
	})
}

// What a probe wants done without being asked the supervisor does, once in a while, and says where
// that fails.
func TestHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var did atomic.Int32
		saved := probes
		defer func() { probes = saved }()
		fix := &Fix{Says: "x", Do: func(context.Context) error { did.Add(1); return errors.New("it does not work") }}
		fails := func(context.Context, *Env) Result { r := Failf("y", "x"); r.Fix = fix; return r }
		probes = []Probe{{Kind: health.Tun, Every: always, Heals: true, Run: fails}, {Kind: health.DNS, Every: always, Run: fails}}
		var tr health.Tracker
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			NewWatcher(&tr, t.TempDir(), t.TempDir(), netip.Addr{}, nil).watch(ctx, func() {})
		}()
		time.Sleep(time.Minute) // fake time
		synctest.Wait()
		if n := did.Load(); n < 2 || n > 4 {
			t.Errorf("done %d times in a minute", n)
		}
		for _, p := range tr.Problems() {
			if strings.Contains(p.Text, "it does not work") != (p.Code == "tun") {
				t.Errorf("%+v", p)
			}
		}
		cancel()
		<-done
	})
}

// docs/design/doctor.md has a row for every probe, and for nothing else.
func TestDocs(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/design/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(raw), -1) {
		rows = append(rows, m[1])
	}
	var want []string
	for _, p := range Probes() {
		want = append(want, p.Name())
	}
	if !slices.Equal(rows, want) {
		t.Errorf("docs/design/doctor.md has rows for\n%v, want\n%v", rows, want)
	}
}

// What a supervisor has found and no probe looks at is in the report, once.
func TestReportHasWhatTheSupervisorFound(t *testing.T) {
	var tr health.Tracker
	tr.Set(health.ConfigBroken, "line 2", "mend it")
	tr.SetAt(health.DiskSpace, health.Error, "", "full", "delete")
	tr.Set(health.ClockNotSynchronized, "system", "let it")
	var rep Report
	rep.Add(tr.Problems(), nil, nil)
	if len(rep.Findings) != 1 || rep.Findings[0].Name != "config-broken" || rep.Findings[0].Status != Fail || rep.Findings[0].Cure != "mend it" {
		t.Errorf("%+v", rep.Findings)
	}
}

// Each code that is named has a line: that of its problem, that there is none, or that nobody answers. Other problems
// have none.
func TestOnlyProblemsOfTheSupervisor(t *testing.T) {
	if _, err := Find([]string{health.EngineSilent.Code}); err != nil {
		t.Fatal(err)
	}
	var tr health.Tracker
	tr.Set(health.EngineSilent, "silent", "wait")
	tr.Set(health.BackupOld, "old", "rivulet backup FILE")
	only := []string{health.EngineSilent.Code, health.TrustClosed.Code}
	for _, c := range []struct {
		problems []health.Problem
		err      error
		want     [2]Status
	}{
		{tr.Problems(), nil, [2]Status{Fail, Pass}},
		{nil, nil, [2]Status{Pass, Pass}},
		{nil, errors.New("not running"), [2]Status{Skip, Skip}},
	} {
		var rep Report
		rep.Add(c.problems, only, c.err)
		if len(rep.Findings) != 2 || rep.Findings[0].Name != only[0] || rep.Findings[1].Name != only[1] ||
			rep.Findings[0].Status != c.want[0] || rep.Findings[1].Status != c.want[1] {
			t.Errorf("%+v: %+v", c, rep.Findings)
		}
	}
}
