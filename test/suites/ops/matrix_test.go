package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/lifetime/upgrade"
	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/releases"
)

// under waits until b's update is in a phase, whether or not rivulet runs.
func under(t *testing.T, ctx context.Context, phase upgrade.Phase) (s upgrade.State) {
	t.Helper()
	await.NoError(t, ctx, 0, "the update is "+string(phase), func() error {
		raw, err := b.Run(ctx, "rivulet", "upgrade", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(raw), &s)
		}
		if err == nil && s.Phase != phase {
			err = fmt.Errorf("it is %s", s.Phase)
		}
		return err
	})
	return s
}

// settled waits until b's update is over, and checks how it ended.
func settled(t *testing.T, ctx context.Context, ok bool, words string) {
	t.Helper()
	s := under(t, ctx, upgrade.Idle)
	if s.Last == nil || s.Last.OK != ok || !strings.Contains(s.Last.Reason, words) {
		log, _ := b.Run(ctx, "sh", "-c", "grep -v level=info /var/lib/rivulet/log/engine.log | tail -40")
		t.Logf("the engine's log:\n%s", log)
		t.Fatalf("it ended with %+v, want ok %v and %q", s.Last, ok, words)
	}
}

func upgradeB(t *testing.T, ctx context.Context, file string, more ...string) string {
	t.Helper()
	return labtest.Must(t, ctx, b, append([]string{"rivulet", "upgrade", "--older", "--window", window, "--every", "3s"}, append(more, file)...)...)
}

// A version that does nothing at all, and does not even stop when it is told to.
func TestAVersionThatHangs(t *testing.T) {
	labtest.NeedsLong(t)
	ctx := suite.Bounded(t, 6*time.Minute)
	_, _, now := other(t, ctx)
	keep := deploy(t, ctx, b, "hang", 1)
	file := releases.Faulty(t, dir, "v4-hang", "hang", releases.Kubernetes(t, releases.Binary("v2/rivulet")))
	if said, err := b.Run(ctx, "rivulet", "upgrade", "--wait", "--window", "9s", "--every", "3s", file); err == nil || !strings.Contains(said, "no status") {
		t.Errorf("%v: %s", err, said)
	}
	runs(t, ctx, b, now)
	if got := containers(t, ctx, b, "hang", 1); !maps.Equal(got, keep) {
		t.Errorf("containers are %v, they were %v", got, keep)
	}
}

// The power fails again and again while a good version is tried: it is taken in the
// end. Each cut comes at another moment, of which each second is one.
func TestPowerCutsWhileAGoodVersionIsTried(t *testing.T) {
	labtest.NeedsLong(t)
	ctx := suite.Bounded(t, 15*time.Minute)
	file, next, _ := other(t, ctx)
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "create", "configmap", "power", "--from-literal=version="+next)
	upgradeB(t, ctx, file)
	for _, after := range []time.Duration{0, 300 * time.Millisecond, time.Second, 2500 * time.Millisecond, 8 * time.Second} {
		select {
		case <-time.After(after): // the moment of the cut is the test's choice, nothing is waited for
		case <-ctx.Done():
		}
		cut(t, ctx)
	}
	settled(t, ctx, true, "")
	runs(t, ctx, b, next)
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "get", "configmap", "power")
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "delete", "configmap", "power")
}

// The power fails while a bad version is undone: the old one comes back with its data.
func TestPowerCutsWhileABadVersionIsUndone(t *testing.T) {
	labtest.NeedsLong(t)
	ctx := suite.Bounded(t, 15*time.Minute)
	_, _, now := other(t, ctx)
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "create", "configmap", "kept")
	file := releases.Faulty(t, dir, "v5-crash", "1", releases.Kubernetes(t, releases.Binary("v2/rivulet")))
	upgradeB(t, ctx, file)
	for i := range 4 {
		under(t, ctx, upgrade.Trying)
		time.Sleep(time.Duration(i) * 700 * time.Millisecond) // the moment of the cut is the test's choice
		cut(t, ctx)
		if s, err := peek(ctx); err == nil && s.Phase == upgrade.Idle {
			break
		}
	}
	settled(t, ctx, false, "ended by itself 3 times")
	runs(t, ctx, b, now)
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "get", "configmap", "kept")
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "delete", "configmap", "kept")
}

func peek(ctx context.Context) (s upgrade.State, err error) {
	raw, err := b.Run(ctx, "rivulet", "upgrade", "-o", "json")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(raw), &s)
}

func cut(t *testing.T, ctx context.Context) {
	t.Helper()
	if err := b.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// The judge is killed: the version that is tried ends with it, and a new start goes on.
func TestTheJudgeIsKilled(t *testing.T) {
	labtest.NeedsLong(t)
	ctx := suite.Bounded(t, 8*time.Minute)
	file, next, _ := other(t, ctx)
	upgradeB(t, ctx, file)
	under(t, ctx, upgrade.Trying)
	await.NoError(t, ctx, 0, "the new version answers", func() error {
		st, err := look(ctx, b)
		if err == nil && st.Version != next {
			err = errors.New(st.Version)
		}
		return err
	})
	if err := b.Kill(ctx, "supervisor"); err != nil { // what the device's init has started: the judge
		t.Fatal(err)
	}
	await.NoError(t, ctx, 0, "nothing of it runs any more", func() error {
		if out, err := b.Run(ctx, "sh", "-c", "! pgrep -f 'rivulet run$'"); err != nil {
			return fmt.Errorf("%s %w", out, err)
		}
		return nil
	})
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	settled(t, ctx, true, "")
	runs(t, ctx, b, next)
}

// A pod holds an upgrade; it begins when the pod is gone. Then it is cancelled while
// it is tried, and a new one begins with nothing of it.
func TestHeldThenCancelledThenTaken(t *testing.T) {
	labtest.NeedsLong(t)
	ctx := suite.Bounded(t, 10*time.Minute)
	file, next, now := other(t, ctx)
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "run", "holder", "--image=rivulet.dev/pause:1", "--labels=rivulet.dev/hold-upgrade=", "--restart=Never")
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "wait", "--for=condition=Ready", "pod/holder", "--timeout=60s")
	if said := upgradeB(t, ctx, file); !strings.Contains(said, "default/holder") {
		t.Errorf("it does not say who holds it: %s", said)
	}
	st, err := look(ctx, b)
	if err != nil || st.Version != now || !strings.Contains(health(st, "upgrade-waiting"), "default/holder") {
		t.Errorf("%v: version %s, health %+v", err, st.Version, st.Health)
	}
	labtest.Must(t, ctx, b, "rivulet", "kubectl", "delete", "pod", "holder", "--now")
	under(t, ctx, upgrade.Trying)
	await.NoError(t, ctx, 0, "status tells of the trial", func() error {
		st, err := look(ctx, b)
		if err == nil && health(st, "upgrade-trying") == "" {
			err = fmt.Errorf("health is %+v", st.Health)
		}
		return err
	})
	refused(t, ctx, b, []string{"another update is being tried"}, "rivulet", "upgrade", file)
	labtest.Must(t, ctx, b, "rivulet", "upgrade", "--cancel")
	settled(t, ctx, false, "cancelled by hand")
	runs(t, ctx, b, now)
	upgradeB(t, ctx, file, "--wait")
	st = runs(t, ctx, b, next)
	if text := health(st, "upgrade-undone"); text != "" {
		t.Errorf("a good upgrade, and status still says %q", text)
	}
}
