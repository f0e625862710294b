package twin

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// Ends are the last states of ending away pods, by the home pod. A watch delivers how a pod ended together with its
// deletion, and a cache keeps nothing of deleted objects. The zero value is ready.
type Ends struct {
	mu sync.Mutex
	of map[types.UID]*corev1.Pod
}

// note is called with each state before a cache has it.
func (e *Ends) note(p *corev1.Pod) {
	if p.DeletionTimestamp == nil && !translate.Terminal(p.Status.Phase) {
		return
	}
	uid := types.UID(p.Labels[policy.HomeUIDLabel])
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = map[types.UID]*corev1.Pod{}
	}
	if old := e.of[uid]; old == nil || old.UID == p.UID || !p.CreationTimestamp.Before(&old.CreationTimestamp) {
		e.of[uid] = p
	}
}

// Get returns the last state of the away pod, nil if it is not known.
func (e *Ends) Get(uid types.UID) *corev1.Pod {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[uid]
}

// Keep drops all pods of that name except the one that has it now, or nil.
func (e *Ends) Keep(k types.NamespacedName, home *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.of, func(uid types.UID, p *corev1.Pod) bool {
		return p.Annotations[policy.HomePodAnnotation] == k.Name && p.Annotations[policy.HomeNamespaceAnnotation] == k.Namespace && (home == nil || home.UID != uid)
	})
}
