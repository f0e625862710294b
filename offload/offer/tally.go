package offer

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Tally are the requests of pods, summed up by the properties that Measure distinguishes. It is updated with each
// change of a pod, so that Measure takes time in proportion to nodes and consumers, and not to pods: a thousand pods
// are thousands of changes.
type Tally struct {
	mu   sync.Mutex
	sums map[group]*sum
}

// group are the properties in which pods are equal.
type group struct {
	node   string  // "" while it waits for one
	tenant bool    // of a consumer
	origin peer.ID // of tenants
	// of tenants without a node here: the platform that they require
	os, architecture string
}

type sum struct {
	pods      int
	requested corev1.ResourceList
	named     map[corev1.ResourceName]int // by number of pods: a resource that none lists is absent, and not zero
}

func (s *sum) add(p *corev1.Pod) {
	asked := Requests(p)
	s.pods++
	add(s.requested, asked)
	for name := range asked {
		s.named[name]++
	}
}

func (s *sum) sub(p *corev1.Pod) {
	asked := Requests(p)
	s.pods--
	sub(s.requested, asked)
	for name := range asked {
		if s.named[name]--; s.named[name] == 0 {
			delete(s.named, name)
			delete(s.requested, name)
		}
	}
}

// NewTally sums up pods.
func NewTally(pods ...*corev1.Pod) *Tally {
	t := &Tally{sums: map[group]*sum{}}
	for _, p := range pods {
		t.change(nil, p)
	}
	return t
}

// change replaces a pod's previous state; nil is none.
func (t *Tally) change(before, now *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before != nil && counts(before) {
		k := groupOf(before)
		if s := t.sums[k]; s != nil {
			if s.sub(before); s.pods == 0 {
				delete(t.sums, k)
			}
		}
	}
	if now != nil && counts(now) {
		k := groupOf(now)
		s := t.sums[k]
		if s == nil {
			s = &sum{requested: corev1.ResourceList{}, named: map[corev1.ResourceName]int{}}
			t.sums[k] = s
		}
		s.add(now)
	}
}

// each calls f with every group and its requests, which f may keep.
func (t *Tally) each(f func(group, corev1.ResourceList)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, s := range t.sums {
		f(k, s.requested.DeepCopy())
	}
}

// counts reports whether a pod uses capacity: a finished one does not.
func counts(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func groupOf(p *corev1.Pod) group {
	g := group{node: p.Spec.NodeName}
	var origin string
	if origin, g.tenant = p.Labels[policy.OriginLabel]; g.tenant {
		g.origin = peer.ID(origin)
		g.os, g.architecture = p.Spec.NodeSelector[corev1.LabelOSStable], p.Spec.NodeSelector[corev1.LabelArchStable]
	}
	return g
}

// handler updates the tally from an informer's pods; done is called after each change.
func (t *Tally) handler(done func()) cache.ResourceEventHandler {
	pod := func(obj any) *corev1.Pod {
		p, _ := watch.Last(obj).(*corev1.Pod)
		return p
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { t.change(nil, pod(obj)); done() },
		UpdateFunc: func(old, obj any) { t.change(pod(old), pod(obj)); done() },
		DeleteFunc: func(obj any) { t.change(pod(obj), nil); done() },
	}
}
