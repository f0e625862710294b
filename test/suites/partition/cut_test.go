package partition

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// shelf is both clusters as the test sees them.
type shelf struct {
	t    *testing.T
	ctx  context.Context
	a, b kubernetes.Interface
	o    *observer
	was  map[string][]corev1.Pod // by row
}

// Every kind of workload through a cut of ten seconds and one of two minutes, all in
// the same two cuts. What is asked of each is in the table.
func TestCuts(t *testing.T) {
	ctx := suite.Bounded(t, 9*time.Minute)
	a, b := begin(t, ctx)
	s := &shelf{t: t, ctx: ctx, a: client(t, ctx, a), b: client(t, ctx, b), was: map[string][]corev1.Pod{}}
	s.o = observe(t, ctx, map[string]kubernetes.Interface{"a": s.a, "b": s.b})

	var early, late, firm []row
	var text []string
	for ns, mode := range modes {
		text = append(text, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q,"labels":{"rivulet.dev/offload":%q}}}`, ns, mode))
	}
	for _, r := range table {
		switch {
		case r.with.late:
			late = append(late, r)
			continue
		case r.fate == kept:
			firm = append(firm, r)
		}
		early = append(early, r)
		text = append(text, r.manifest())
	}
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(text, ",")+`]}`)
	for _, r := range early {
		if r.kind == "CronJob" { // their time comes once a year; this is an ordinary run of one
			kubectl(t, ctx, a, fmt.Sprintf("create job -n %s --from=cronjob/%s %s-1", r.in, r.name, r.name))
		}
	}
	await.NoError(t, ctx, 3*time.Minute, "everything runs on b", func() error { return all(early, s.start) })
	t.Logf("%d rows", len(table))

	t.Run("10 s", func(t *testing.T) {
		before := len(s.o.deletions())
		cut(t)
		time.Sleep(10 * time.Second) // the length of the cut is what is tested
		heal(t)
		peered(t, ctx)
		await.NoError(t, ctx, time.Minute, "nothing has changed", func() error {
			return all(early, func(r row) error { return r.steadfast(s.scene(r)) })
		})
		if gone := s.o.deletions()[before:]; len(gone) > 0 {
			t.Errorf("pods were deleted: %v", gone)
		}
	})

	await.NoError(t, ctx, time.Minute, "b takes pods again", func() error {
		n, err := s.a.CoreV1().Nodes().Get(ctx, "b", metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }) {
			err = fmt.Errorf("taints: %v", n.Spec.Taints)
		}
		return err
	})
	text = nil
	for _, r := range late {
		text = append(text, r.manifest())
	}
	apply(t, ctx, a, `{"apiVersion":"v1","kind":"List","items":[`+strings.Join(text, ",")+`]}`)
	await.NoError(t, ctx, time.Minute, "what ends runs on b", func() error { return all(late, s.start) })

	begun := time.Now()
	cut(t)
	t.Run("2 min", func(t *testing.T) {
		await.NoError(t, ctx, time.Minute, "b is NotReady at home", func() error {
			if ready, err := nodeReady(ctx, s.a); ready || err != nil {
				return fmt.Errorf("ready: %v %v", ready, err)
			}
			return nil
		})
		for _, r := range table {
			if r.act != "" {
				kubectl(t, ctx, a, "-n "+r.in+" "+r.act)
			}
			if r.in == theirs {
				s.deleteAway(r)
			}
		}
		await.NoError(t, ctx, 100*time.Second, "everything is as the table says", func() error {
			return all(table, func(r row) error { return r.during(s.scene(r)) })
		})
		time.Sleep(time.Until(begun.Add(2 * time.Minute))) // the length of the cut is what is tested
		if err := all(table, func(r row) error { return r.during(s.scene(r)) }); err != nil {
			t.Errorf("at its end: %v", err)
		}
	})
	heal(t)
	t.Run("and after it", func(t *testing.T) {
		await.NoError(t, ctx, 3*time.Minute, "everything is as the table says", func() error {
			return all(table, func(r row) error { return r.afterwards(s.scene(r)) })
		})
		for _, r := range firm {
			if n := len(s.o.of(r.String())); n != r.n {
				t.Errorf("%s ran in %d containers, not %d", r, n, r.n)
			}
		}
		kubectl(t, ctx, a, "delete namespace steady hasty acted theirs --wait=false")
		await.NoError(t, ctx, 2*time.Minute, "no twin is left", func() error {
			left, err := s.b.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			if err == nil && len(left.Items) > 0 {
				err = fmt.Errorf("%d, the first is %s", len(left.Items), left.Items[0].Name)
			}
			return err
		})
	})
}

// steadfast is what a short cut leaves.
func (r row) steadfast(s scene) error {
	if len(s.away) != r.n || len(s.runs) != r.n {
		return fmt.Errorf("%s, ran %v", s, s.runs)
	}
	return s.untouched(r.n)
}

// start notes the pods of a row once all run on b.
func (s *shelf) start(r row) error {
	pods, err := list(s.ctx, s.a, r.in, r.name)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName != "b" || !running(&p) {
			return fmt.Errorf("%s on %q: %s %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
	}
	if len(pods) != r.n && r.fate != ticks {
		return fmt.Errorf("%d pods", len(pods))
	}
	s.was[r.String()] = pods
	return nil
}

func (s *shelf) scene(r row) scene {
	home, err := list(s.ctx, s.a, r.in, r.name)
	if err != nil {
		s.t.Logf("%s: %v", r, err)
	}
	away, err := list(s.ctx, s.b, twin(s.ctx, s.b, r.in), r.name)
	if err != nil {
		s.t.Logf("%s: %v", r, err)
	}
	return scene{was: s.was[r.String()], home: home, away: away, runs: s.o.of(r.String())}
}

// deleteAway deletes the away pods of a row, as the provider's people might, and
// waits until others run.
func (s *shelf) deleteAway(r row) {
	s.t.Helper()
	away, err := list(s.ctx, s.b, twin(s.ctx, s.b, r.in), r.name)
	if err != nil || len(away) != r.n {
		s.t.Fatalf("%s: %d away pods, %v", r, len(away), err)
	}
	for _, p := range away {
		if err := s.b.CoreV1().Pods(p.Namespace).Delete(s.ctx, p.Name, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
}

func cut(t *testing.T) {
	t.Helper()
	if err := suite.Lab.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
}

func heal(t *testing.T) {
	t.Helper()
	if err := suite.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
}
