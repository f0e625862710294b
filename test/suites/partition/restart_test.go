package partition

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// Fifty pods are away, and whatever ends on either side and comes back, no pod is
// deleted, restarted or there twice: UIDs, start times, containers and their restarts
// are those of before at both API servers. With the provider's power the containers go;
// the pods stay, and what had finished is not run again.
func TestRestarts(t *testing.T) {
	ctx := suite.Bounded(t, 14*time.Minute)
	a, b := begin(t, ctx)
	s := &shelf{t: t, ctx: ctx, a: client(t, ctx, a), b: client(t, ctx, b), was: map[string][]corev1.Pod{}}
	s.o = observe(t, ctx, map[string]kubernetes.Interface{"a": s.a, "b": s.b})
	many := row{in: "many", name: "web", kind: "Deployment", n: 50, fate: kept}
	once := row{in: "many", name: "once", kind: "Job", fate: finishes, with: how{seconds: 1}}
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"many","labels":{"rivulet.dev/offload":"remote"}}},`+
		many.manifest()+","+once.manifest()+`]}`)
	await.NoError(t, ctx, 4*time.Minute, "50 pods run on b, and a Job has ended", func() error {
		done, err := list(ctx, s.a, once.in, once.name)
		if err == nil && (len(done) != 1 || done[0].Status.Phase != corev1.PodSucceeded) {
			err = errors.New("the Job has not ended")
		}
		return errors.Join(err, s.start(many))
	})
	away := uids(t, ctx, s.b, twin(ctx, s.b, "many"))
	marker := s.was[many.String()][0].Name
	round := func(t *testing.T, name string) {
		t.Helper()
		peered(t, ctx)
		await.NoError(t, ctx, 4*time.Minute, "what is asked of home arrives at b, and the watches have seen it", func() error {
			_, err := s.a.CoreV1().Pods("many").Patch(ctx, marker, types.MergePatchType, []byte(`{"metadata":{"labels":{"round":"`+name+`"}}}`), metav1.PatchOptions{})
			return errors.Join(err, s.o.upTo(name))
		})
	}
	same := func(t *testing.T) {
		t.Helper()
		if is := uids(t, ctx, s.b, twin(ctx, s.b, "many")); fmt.Sprint(is) != fmt.Sprint(away) {
			t.Errorf("other pods at b:\n%v, were\n%v", is, away)
		}
		if n := len(s.o.of(once.String())); n != 1 {
			t.Errorf("the Job that had ended ran %d times", n)
		}
		if gone := s.o.deletions(); len(gone) > 0 {
			t.Errorf("pods were deleted: %v", gone)
		}
	}
	undisturbed := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			f(t)
			round(t, fmt.Sprint(time.Now().Unix()))
			await.NoError(t, ctx, time.Minute, "the same pods in the same containers", func() error { return many.steadfast(s.scene(many)) })
			same(t)
		})
	}
	undisturbed("supervisor at home killed", func(t *testing.T) { restart(t, ctx, a) })
	undisturbed("engine at home killed", func(t *testing.T) { engineAgain(t, ctx, a) })
	undisturbed("supervisor at the provider killed", func(t *testing.T) { restart(t, ctx, b) })
	undisturbed("engine at the provider killed", func(t *testing.T) { engineAgain(t, ctx, b) })
	undisturbed("both supervisors killed", func(t *testing.T) { restart(t, ctx, a, b) })

	t.Run("the provider's power is cut", func(t *testing.T) {
		power(t, ctx, b)
		round(t, "power")
		await.NoError(t, ctx, 3*time.Minute, "the same pods, each started once more", func() error {
			pods, err := list(ctx, s.a, many.in, many.name)
			if err != nil {
				return err
			}
			before := map[types.UID]*corev1.Pod{}
			for i := range s.was[many.String()] {
				p := &s.was[many.String()][i]
				before[p.UID] = p
			}
			for i := range pods {
				p := &pods[i]
				if w := before[p.UID]; w == nil || !running(p) || containerOf(p) == containerOf(w) || restartsOf(p) != 1 || !p.Status.StartTime.Equal(w.Status.StartTime) {
					return fmt.Errorf("%s: %s, %d restarts, started %s", p.Name, p.Status.Phase, restartsOf(p), p.Status.StartTime)
				}
			}
			if len(pods) != many.n {
				return fmt.Errorf("%d pods", len(pods))
			}
			return nil
		})
		same(t)
	})
	kubectl(t, ctx, a, "delete namespace many --wait=false")
}

// uids are those of the pods there, with their start times.
func uids(t *testing.T, ctx context.Context, c kubernetes.Interface, namespace string) map[types.UID]string {
	t.Helper()
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[types.UID]string{}
	for _, p := range list.Items {
		out[p.UID] = p.Status.StartTime.UTC().Format(time.RFC3339)
	}
	return out
}

// restart kills supervisors and starts them again.
func restart(t *testing.T, ctx context.Context, devices ...*lab.Device) {
	t.Helper()
	for _, d := range devices {
		if err := d.Kill(ctx, "supervisor"); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range devices {
		if err := d.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// engineAgain kills an engine and waits for another.
func engineAgain(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	was := labtest.Status(t, ctx, d).PIDs["engine"]
	if was == 0 {
		t.Fatal("no engine")
	}
	if err := d.Kill(ctx, "engine"); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "another engine", func() error {
		if st, err := d.Status(ctx); err != nil || !st.Ready || st.PIDs["engine"] == 0 || st.PIDs["engine"] == was {
			return fmt.Errorf("%v %v", st.PIDs, err)
		}
		return nil
	})
}

func power(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	if err := d.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
}
