package power

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// kept is how long before a power cut something must have been written to the API to be there after it: the engine
// syncs what is not a heartbeat within half a second and the time of two syncs (docs/design/small.md), each far below a
// quarter of a second on a machine that is not late. State.db is synced at every write.
const kept = time.Second

// cut is the power's end: it went between these two moments.
type cut struct{ begun, done time.Time }

// load writes ConfigMaps as fast as the API server takes them, and remembers which
// were acknowledged and when.
type load struct {
	mu    sync.Mutex
	acked map[string]write
	next  int
}

// write is one that was acknowledged. Which cut was the next one goes by when it was sent: the
// answer may be read when the power has gone already.
type write struct{ sent, acked time.Time }

func (l *load) run(ctx context.Context, a *lab.Device) {
	for ctx.Err() == nil {
		c, err := client(ctx, a)
		for err == nil && ctx.Err() == nil {
			l.mu.Lock()
			l.next++
			name := fmt.Sprintf("load-%05d", l.next)
			l.mu.Unlock()
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"filler": fmt.Sprintf("%01000d", l.next)}}
			sent := time.Now()
			if _, err = c.CoreV1().ConfigMaps("default").Create(ctx, cm, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
				l.mu.Lock()
				l.acked[name] = write{sent, time.Now()}
				l.mu.Unlock()
				pause(ctx, 20*time.Millisecond)
			}
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// writes waits until something was acknowledged after begun: a busy machine takes long to start.
func (l *load) writes(t *testing.T, ctx context.Context, begun time.Time) {
	t.Helper()
	await.NoError(t, ctx, 3*time.Minute, "a write is acknowledged", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, w := range l.acked {
			if w.acked.After(begun) {
				return nil
			}
		}
		return fmt.Errorf("%d before", len(l.acked))
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// before is how long before the next cut a write was acknowledged, at the least. What no cut followed was acknowledged
// long before.
func (w write) before(cuts []cut) time.Duration {
	next := slices.IndexFunc(cuts, func(c cut) bool { return c.done.After(w.sent) })
	if next < 0 {
		return math.MaxInt64
	}
	return cuts[next].begun.Sub(w.acked)
}

// missing returns the names that were acknowledged and are not there, with how long before the next cut that was, and
// how many were acknowledged longer than kept before it.
func (l *load) missing(ctx context.Context, a *lab.Device, cuts []cut) (gone map[string]time.Duration, of int, _ error) {
	c, err := client(ctx, a)
	if err != nil {
		return nil, 0, err
	}
	list, err := c.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	have := map[string]bool{}
	for _, cm := range list.Items {
		have[cm.Name] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	gone = map[string]time.Duration{}
	for name, w := range l.acked {
		age := w.before(cuts)
		if age > kept {
			of++
		}
		if !have[name] {
			gone[name] = age
		}
	}
	return gone, of, nil
}

// The power of a goes at random moments, also while it starts; now and then only a
// process is killed. Afterwards the device is whole: the same cluster, the same
// peer on the same terms, the same workload, and what was written in time.
func TestPowerCuts(t *testing.T) {
	n := cycles(t)
	ctx, a, b := need(t, 3*time.Minute+time.Duration(n)*15*time.Second)
	deploy(t, ctx, a)
	noted(t, ctx, a)
	pause(ctx, kept)
	ledger := newLedger(t, ctx, a)
	before, err := a.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	loadCtx, stop := context.WithCancel(ctx)
	l := &load{acked: map[string]write{}}
	var done sync.WaitGroup
	done.Go(func() { l.run(loadCtx, a) })
	done.Go(func() { ledger.run(loadCtx, a) })
	var cuts []cut
	begun := time.Now()
	for i := range n {
		wait := time.Duration(rand.Int64N(int64(8 * time.Second)))
		if i%4 == 1 { // long enough that there is something to judge
			l.writes(t, ctx, begun)
			ledger.writes(t, ctx)
			wait += kept
		}
		pause(ctx, wait)
		what := "power"
		if i%5 == 3 {
			what = []string{"supervisor", "engine"}[rand.IntN(2)]
		}
		going := time.Now()
		err := a.Kill(ctx, what)
		if what == "power" {
			cuts = append(cuts, cut{going, time.Now()})
		}
		if err != nil && what == "power" { // an engine may not be there at the moment
			t.Fatalf("cycle %d: %v", i, err)
		}
		begun = time.Now()
		if err := a.Start(ctx); err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
	}
	stop()
	done.Wait()
	begun = time.Now()
	peered(t, ctx)
	t.Logf("%d cycles; ready and peered %.1f s after the last", n, time.Since(begun).Seconds())
	after, err := a.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(after.Peers) != 1 || after.Peers[0].ID != before.Peers[0].ID {
		t.Errorf("peers %+v, were %+v", after.Peers, before.Peers)
	}
	if out := labtest.Must(t, ctx, b, "rivulet", "peers"); !strings.Contains(out, "Connected") {
		t.Errorf("b sees %s", out)
	}
	serves(t, ctx, a, "shelf")
	gone, of, err := l.missing(ctx, a, cuts)
	if err != nil {
		t.Fatal(err)
	}
	oldest := time.Duration(math.MinInt64)
	for name, age := range gone {
		if oldest = max(oldest, age); age > kept {
			t.Errorf("%s, acknowledged %s before a cut, is gone", name, age)
		}
	}
	if of == 0 {
		t.Errorf("nothing was acknowledged %s before a cut", kept)
	}
	if len(gone) > 0 {
		t.Logf("%d objects acknowledged, %d of them lost, the oldest %s before a cut", len(l.acked), len(gone), oldest)
	} else {
		t.Logf("%d objects acknowledged, none lost", len(l.acked))
	}
	ledger.whole(t, ctx, a)
	labtest.Must(t, ctx, a, "rivulet", "kubectl", "delete", "configmap", "--all", "--wait=false")
}
