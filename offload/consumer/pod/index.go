package pod

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/homeimages"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
)

// index is what is known of a target's pods, from caches and from the memory of this process. Its methods write to no
// API, and none but Usage uses the network.
type index struct {
	cfg     Config
	rivulet rivulet // cfg.Target; nil if it is no Rivulet cluster
	pods    bound
	twins   twin.Set
	memory  memory
}

// home returns the pod of that name, nil without one.
func (x *index) home(k types.NamespacedName) *corev1.Pod { return x.pods.get(k) }

// wasSent reports whether, by the caches, something was made away for the pod; its condition is written late.
func (x *index) wasSent(home *corev1.Pod) bool {
	if x.memory.isUnsure(home.UID) {
		return true
	}
	cond := translate.Condition(&home.Status, translate.OffloadedCondition)
	if cond != nil && cond.Status == corev1.ConditionTrue {
		return true
	}
	_, sent := x.memory.sentAt(home.UID)
	if t := x.twins.Get(home.Namespace); !sent && t != nil {
		sent = len(t.WrappersOf(home.UID))+len(t.PodsOf(home.UID)) > 0 // a pod may outlive its wrapper
	}
	return sent
}

// offloaded reports whether pods of the namespace may run on the target.
func (x *index) offloaded(namespace string) bool {
	ns, _ := x.cfg.Namespaces.Get(namespace)
	return ns.Allows(x.cfg.Target.Name())
}

// lost reports whether the target has stopped answering; false right after a start.
func (x *index) lost() bool { return x.rivulet != nil && x.rivulet.Lost() }

// If the provider replaces pods itself (package replacement), a pod with restartPolicy Always needs no ReplicaSet: the
// away pod is its own record. A ReplicaSet is made if the provider refuses the pod, since a ReplicaSet waits for
// capacity by itself. Existing ReplicaSets stay.

// keeps reports whether the target replaces pods itself now.
func (x *index) keeps() bool { return x.rivulet != nil && x.rivulet.Keeps() }

// Busy reports whether pods of the namespace that were sent away still exist at home. It is true until home's pods were
// listed once.
func (x *index) Busy(namespace string) bool {
	if !x.pods.synced() {
		return true
	}
	for _, p := range x.pods.list() {
		if p.Namespace != namespace || translate.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil {
			continue
		}
		if x.wasSent(p) {
			return true
		}
	}
	return false
}

// ErrNotKnown is the error of Away until the pods of the target were listed.
var ErrNotKnown error = apierrors.NewServiceUnavailable("offload: the target has not told yet which pods it runs; try again in a moment")

// Away returns the twin and the name under which a pod of home runs on the target.
func (x *index) Away(namespace, name string) (twin, pod string, err error) {
	home := x.home(types.NamespacedName{Namespace: namespace, Name: name})
	if home == nil {
		return "", "", apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	t := x.twins.Get(namespace)
	if t == nil {
		return "", "", ErrNotKnown
	}
	if p := translate.Current(t.PodsOf(home.UID)); p != nil {
		return t.Name, p.Name, nil
	}
	if !t.Synced() {
		return "", "", ErrNotKnown
	}
	return "", "", apierrors.NewServiceUnavailable("offload: pod " + name + " has not started on " + x.cfg.Target.Name() + " yet")
}

// On lists the pods of home that are bound to the virtual node. They are shared with the cache.
func (x *index) On(node string) []*corev1.Pod {
	return slices.DeleteFunc(x.pods.list(), func(p *corev1.Pod) bool { return p.Spec.NodeName != node })
}

// Counts reports whether a pod is included in numbers of pods: it runs or will run. Finished and refused pods are not.
func Counts(p *corev1.Pod) bool {
	return !translate.Terminal(p.Status.Phase) && p.Status.Reason != translate.ReasonRefused
}

// Counts returns the number of pods of the virtual node that count, and why others were refused, by namespace/name.
func (x *index) Counts(node string) (pods int, refused map[string]string) {
	refused = map[string]string{}
	refusals := x.memory.refusals(x.pods.list)
	for _, p := range x.pods.list() {
		if p.Spec.NodeName != node {
			continue
		}
		if why, ok := refusals[p.UID]; ok {
			refused[p.Namespace+"/"+p.Name] = why
		}
		if Counts(p) {
			pods++
		}
	}
	return pods, refused
}

// Images are the images of home's pods that are bound to the controller's target.
func Images(c *Controller) (out []homeimages.Use) {
	for _, p := range c.pods.list() {
		os, arch := c.cfg.Nodes.Platform(p.Spec.NodeName)
		out = append(out, homeimages.Of(p, os, arch)...)
	}
	return out
}

// Refers reports whether a pod that is bound to the target refers to the object; known is false until all pods were
// listed.
func (x *index) Refers(o policy.Object) (refers, known bool) {
	known = x.pods.synced()
	for _, node := range x.pods.served() {
		if keys, err := x.pods.all.GetIndexer().IndexKeys(byReference, referenceKey(node, o)); err == nil && len(keys) > 0 {
			return true, true
		}
	}
	return false, known
}
