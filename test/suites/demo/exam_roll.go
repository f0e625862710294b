package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"rivulet/test/harness/await"
)

// roll notes the pod of each session as home's API server has it, and whatever of it changes that must not. It reads
// pods with sessionLabel by a watch, which outlives the API server.
type roll struct {
	mu       sync.Mutex
	sessions map[string]*attendance // by namespace and number
	over     bool
}

// attendance is one session.
type attendance struct {
	namespace, number, name string
	asked, running          time.Time
	uid                     types.UID
	node                    string
	broken                  error
}

// newRoll watches until ctx ends.
func newRoll(ctx context.Context, api kubernetes.Interface) *roll {
	r := &roll{sessions: map[string]*attendance{}}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = sessionLabel }))
	note := func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			r.note(p)
		}
	}
	pods := factory.Core().V1().Pods().Informer()
	// It fails only on an informer that has ended.
	_, _ = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, o any) { note(o) }, DeleteFunc: func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			p = p.DeepCopy()
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			r.note(p)
		}
	}})
	factory.Start(ctx.Done())
	return r
}

// of needs the lock.
func (r *roll) of(namespace, number string) *attendance {
	key := namespace + "/" + number
	if r.sessions[key] == nil {
		r.sessions[key] = &attendance{namespace: namespace, number: number}
	}
	return r.sessions[key]
}

func (r *roll) created(namespace string, number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(namespace, fmt.Sprint(number)).asked = time.Now()
}

// end: from now on pods may go.
func (r *roll) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

func (r *roll) note(p *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	s := r.of(p.Namespace, p.Labels[sessionLabel])
	bad := func(format string, args ...any) {
		s.broken = errors.Join(s.broken, fmt.Errorf("%s: "+format, append([]any{p.Namespace + "/" + p.Name}, args...)...))
	}
	if s.uid == "" {
		s.uid, s.name = p.UID, p.Name
	}
	if s.uid != p.UID {
		bad("a second pod; the first was %s", s.name)
	}
	if s.node == "" {
		s.node = p.Spec.NodeName
	}
	if s.node != p.Spec.NodeName {
		bad("on %s, was on %s", p.Spec.NodeName, s.node)
	}
	if p.DeletionTimestamp != nil {
		bad("deleted, %s %s", p.Status.Reason, p.Status.Message)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.RestartCount > 0 {
			bad("%d restarts", c.RestartCount)
		}
	}
	switch p.Status.Phase {
	case corev1.PodRunning:
		if s.running.IsZero() {
			s.running = time.Now()
		}
	case corev1.PodFailed, corev1.PodSucceeded:
		bad("%s, %s", p.Status.Phase, p.Status.Message)
	}
}

// all are copies, by namespace and number.
func (r *roll) all() (out []attendance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(r.sessions)) {
		out = append(out, *r.sessions[key])
	}
	return out
}

// intact is nil as long as no session was moved, lost, ended or started anew.
func (r *roll) intact() error {
	var errs []error
	for _, s := range r.all() {
		errs = append(errs, s.broken)
	}
	return errors.Join(errs...)
}

// waitRunning waits until n sessions run.
func (r *roll) waitRunning(ctx context.Context, n int) error {
	return await.Until(ctx, func() error {
		running, waiting := 0, ""
		for _, s := range r.all() {
			if s.running.IsZero() {
				waiting = fmt.Sprintf("%s/session-%s on %q", s.namespace, s.number, s.node)
			} else {
				running++
			}
		}
		if running != n {
			return fmt.Errorf("demo: %d of %d sessions run; %s does not", running, n, waiting)
		}
		return nil
	})
}

// took is the time from the request to Running, of all sessions or those that choose keeps, sorted.
func (r *roll) took(keep func(attendance) bool) (out []time.Duration) {
	for _, s := range r.all() {
		if keep(s) {
			out = append(out, s.running.Sub(s.asked))
		}
	}
	slices.Sort(out)
	return out
}

// spread is median, 95th percentile and maximum of sorted times.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "none"
	}
	at := func(q float64) float64 { return d[min(len(d)-1, int(q*float64(len(d))))].Seconds() }
	return fmt.Sprintf("p50 %.1f s, p95 %.1f s, max %.1f s", at(0.5), at(0.95), d[len(d)-1].Seconds())
}
