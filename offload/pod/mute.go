package pod

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/keeper"
	"rivulet/offload/mute"
)

// How watches that went mute are found out is told by package mute. Here they have to
// show the wrappers that were written, and of the pods what the wrappers say of them.

// attempt bounds one reconciliation: requests over a connection that is dead
// would hold a worker, and there are few.
const attempt = 30 * time.Second

// doubt says that the caches of t do not show what they have to, for the pod.
func (c *Controller) doubt(k types.NamespacedName, uid types.UID, t *twin) {
	if left := t.guard.Doubt(uid); left > 0 {
		c.queue.AddAfter(k, left)
		return
	}
	if c.cfg.Up() && c.twins.again(t, func() *twin { return c.newTwin(c.life, t.home, t.name) }) {
		c.cfg.Log.Warn("a watch of the target went mute; watching afresh", "namespace", k.Namespace, "pod", k.Name, "after", t.guard.Patience())
	}
	c.queue.AddAfter(k, mute.Proof)
}

// overdue doubts a deletion that takes much longer than the pod's grace.
func (c *Controller) overdue(home *corev1.Pod, t *twin) {
	if wait := time.Minute - time.Since(home.DeletionTimestamp.Time); wait > 0 {
		c.queue.AddAfter(keyOf(home), wait)
		return
	}
	c.doubt(keyOf(home), home.UID, t)
}

// forget takes doubts about a pod back that is no more.
func (c *Controller) forget(home *corev1.Pod) {
	c.mu.Lock()
	delete(c.sent, home.UID)
	c.mu.Unlock()
	c.unstarted.done(home.UID)
	if t := c.twins.get(home.Namespace); t != nil {
		t.guard.Forget(home.UID)
	}
}

// agree reports whether what the wrapper says of its pods, which the provider's
// controllers have counted, is what the watch of pods shows.
func agree(w Wrapper, pods []*corev1.Pod) bool {
	alive, ready := false, false
	for _, p := range pods {
		if terminal(p.Status.Phase) || p.DeletionTimestamp != nil {
			continue
		}
		alive = true
		cond := condition(&p.Status, corev1.PodReady)
		ready = ready || cond != nil && cond.Status == corev1.ConditionTrue
	}
	if w.Job != nil {
		return alive || w.Job.Status.Active == 0 || w.Job.DeletionTimestamp != nil
	}
	set := w.ReplicaSet
	if set == nil {
		return true // the pod itself is what is said of it
	}
	return set.DeletionTimestamp != nil || alive == (set.Status.Replicas > 0) && ready == (set.Status.ReadyReplicas > 0)
}

// quietWatch is how long a watch of pods may show nothing before it has to prove itself.
// Of a pod that is its own record nobody counts what the watch has to show; so something
// is written that it has to.
const quietWatch = 5 * time.Minute

// proveWatches has watches of pods that have been quiet for long show that they live.
func (c *Controller) proveWatches(ctx context.Context) {
	look := time.NewTicker(c.quiet / 5)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		for _, t := range c.twins.list() {
			if quiet := time.Since(time.Unix(0, t.heard.Load())); quiet > c.quiet && c.cfg.Up() && t.synced() {
				c.prove(ctx, t)
			}
		}
	}
}

func (c *Controller) prove(ctx context.Context, t *twin) {
	p := t.anyRecord()
	if p == nil {
		return
	}
	at := time.Now()
	text := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}}}`, p.UID, provedAnnotation, at.UTC().Format(time.RFC3339Nano))
	bounded, cancel := context.WithTimeout(ctx, attempt)
	_, err := t.client.CoreV1().Pods(t.name).Patch(bounded, p.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
	cancel()
	if err != nil {
		return // the next look tries again
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(c.proof):
	}
	if t.heard.Load() < at.UnixNano() && c.twins.again(t, func() *twin { return c.newTwin(c.life, t.home, t.name) }) {
		c.cfg.Log.Warn("a watch of the target went mute; watching afresh", "namespace", t.home, "after", c.quiet)
	}
}

// provedAnnotation is on an away pod by which a watch had to prove itself, with the time.
const provedAnnotation = "rivulet.dev/proved-at"

// anyRecord returns a pod that is its own record and lives, nil if there is none.
func (t *twin) anyRecord() *corev1.Pod {
	for _, obj := range t.pods.GetStore().List() {
		if p := obj.(*corev1.Pod); keeper.IsRecord(p) && p.DeletionTimestamp == nil && !terminal(p.Status.Phase) {
			return p
		}
	}
	return nil
}

// list returns all that are watched.
func (s *twins) list() []*twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*twin, 0, len(s.all))
	for _, t := range s.all {
		out = append(out, t)
	}
	return out
}

// again puts a fresh twin in the place of t, unless that was done already.
func (s *twins) again(t *twin, make func() *twin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[t.home] != t {
		return false
	}
	go t.close() // its handlers may be waiting for the caller
	fresh := make()
	fresh.guard = mute.New[types.UID](t.guard.Next())
	s.all[t.home] = fresh
	return true
}
