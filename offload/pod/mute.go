package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A watch can go mute without an error: a connection that dies without a word is
// found out only by the transport's own pings, and a stream that is stuck inside
// a living connection never. Then nothing wakes anybody up, and a pod would wait
// for ever for something that has long happened. So the watches are checked by
// what has to show in them: what this process wrote itself, and what one of them
// says of another. If that does not show in time, the twin is watched afresh.

// proof is how long a watch may take to show what has to be there; it doubles
// with each time that watching afresh did not help, up to slowest.
const (
	proof   = 15 * time.Second
	slowest = 4 * time.Minute
)

// attempt bounds one reconciliation: requests over a connection that is dead
// would hold a worker, and there are few.
const attempt = 30 * time.Second

// doubt says that the caches of t do not show what they have to, for the pod.
func (c *Controller) doubt(k types.NamespacedName, uid types.UID, t *twin) {
	now := time.Now()
	c.mu.Lock()
	since, known := c.doubts[uid]
	if !known || since.Before(t.born) {
		since = now
		c.doubts[uid] = since
	}
	patience := t.patience
	c.mu.Unlock()
	if wait := patience - now.Sub(since); wait > 0 {
		c.queue.AddAfter(k, wait)
		return
	}
	if c.cfg.Up() && c.twins.again(t, min(2*patience, slowest), func() *twin { return c.newTwin(c.life, t.home, t.name) }) {
		c.cfg.Log.Warn("a watch of the target went mute; watching afresh", "namespace", k.Namespace, "pod", k.Name, "after", patience)
	}
	c.queue.AddAfter(k, proof)
}

// overdue doubts a deletion that takes much longer than the pod's grace.
func (c *Controller) overdue(home *corev1.Pod, t *twin) {
	if wait := time.Minute - time.Since(home.DeletionTimestamp.Time); wait > 0 {
		c.queue.AddAfter(keyOf(home), wait)
		return
	}
	c.doubt(keyOf(home), home.UID, t)
}

// trust takes a doubt back; t, if given, has shown what it had to.
func (c *Controller) trust(uid types.UID, t *twin) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, doubted := c.doubts[uid]; doubted && t != nil {
		t.patience = proof
	}
	delete(c.doubts, uid)
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
	return set.DeletionTimestamp != nil || alive == (set.Status.Replicas > 0) && ready == (set.Status.ReadyReplicas > 0)
}

// again puts a fresh twin in the place of t, unless that was done already.
func (s *twins) again(t *twin, patience time.Duration, make func() *twin) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[t.home] != t {
		return false
	}
	go t.close() // its handlers may be waiting for the caller
	fresh := make()
	fresh.patience = patience
	s.all[t.home] = fresh
	return true
}
