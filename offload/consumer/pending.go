package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Pods get their tolerations on creation. A pod that was created before its namespace was offloaded, or before the API
// server's cache had the label, would wait for ever. So pods that wait for a node are checked again: they get what the
// API server would give them now, as far as a pod may be changed. Otherwise a pod whose controller counts no failures
// is deleted and thereby replaced.
//
// A namespace whose ResourceQuota is full refuses the dry run: the pod itself counts. Then the pod is not replaced, since
// it may have to stay by a rule that only admission has: an event has the cure.
//
// It reads unscheduled pods, and the result of a dry run of creating them again. It alone writes their tolerations,
// those deletions, and the event OffloadTooLate on pods for which neither is possible. The only state is which pods
// have the event.

// waits is the interval of checks. A pod is checked from the second time on that it is seen: a new one is still to be
// scheduled, and its age by the API server's clock says nothing. Nothing runs while no pod waits.
const waits = 3 * time.Second

// seenPods are the unscheduled pods at the last check.
type seenPods map[types.UID]bool

// again returns those that were there at the last check, too, of all unscheduled pods.
func (s *seenPods) again(all []any) (out []*corev1.Pod) {
	now := seenPods{}
	for _, obj := range all {
		p := obj.(*corev1.Pod)
		if now[p.UID] = true; (*s)[p.UID] {
			out = append(out, p)
		}
	}
	*s = now
	return out
}

func (c *Consumer) takeUpPending(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	pods := informers.NewSharedInformerFactoryWithOptions(c.home, 0, informers.WithTransform(watch.Unmanaged), informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", ""), fields.OneTermEqualSelector("status.phase", string(corev1.PodPending))).String()
	})).Core().V1().Pods().Informer()
	go func() {
		defer panics.To(end)
		pods.RunWithContext(ctx)
	}()
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return ctx.Err()
	}
	pending, seen := newPendingPods(c.home, c.recorder), seenPods{}
	look := time.NewTicker(waits)
	defer look.Stop()
	for {
		for _, p := range seen.again(pods.GetStore().List()) {
			ns, ok := c.policy.Get(p.Namespace)
			if !ok || !ns.Sends() || !waiting(p) {
				continue
			}
			if err := pending.takeUp(ctx, p, ns); err != nil && ctx.Err() == nil {
				c.cfg.Log.Debug("a pod that waits was not looked at; again in a while", "namespace", p.Namespace, "pod", p.Name, "err", err)
			}
		}
		if len(seen) == 0 {
			clear(pending.decided)
			clear(pending.full)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
}

// waiting reports whether the scheduler has found no node for the pod, and the pod tolerates no virtual one.
func waiting(p *corev1.Pod) bool {
	if p.DeletionTimestamp != nil {
		return false
	}
	if c := metav1.GetControllerOf(p); c != nil && c.Kind == "DaemonSet" {
		return false
	}
	for _, t := range p.Spec.Tolerations {
		if t.Key == policy.VirtualTaint {
			return false
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// pendingPods takes up pods that wait. It remembers which ones were dealt with.
type pendingPods struct {
	home     kubernetes.Interface
	recorder record.EventRecorder
	decided  map[types.UID]bool // nothing more can be done for them
	full     map[types.UID]bool // they have the event that the quota is full
}

func newPendingPods(home kubernetes.Interface, recorder record.EventRecorder) *pendingPods {
	return &pendingPods{home: home, recorder: recorder, decided: map[types.UID]bool{}, full: map[types.UID]bool{}}
}

// takeUp updates one waiting pod, if a new one like it would be offloaded.
func (w *pendingPods) takeUp(ctx context.Context, p *corev1.Pod, ns policy.Namespace) error {
	if w.decided[p.UID] {
		return nil
	}
	again := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "again-", Namespace: p.Namespace, Labels: p.Labels, Annotations: p.Annotations, OwnerReferences: p.OwnerReferences},
		Spec: *p.Spec.DeepCopy()}
	like, err := w.home.CoreV1().Pods(p.Namespace).Create(ctx, again, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
		w.reportFull(p)
		return nil
	}
	if err != nil {
		return err
	}
	tolerations := p.Spec.Tolerations
	for _, t := range like.Spec.Tolerations {
		if strings.HasPrefix(t.Key, "rivulet.dev/") {
			tolerations = append(tolerations[:len(tolerations):len(tolerations)], t)
		}
	}
	if len(tolerations) == len(p.Spec.Tolerations) {
		w.decided[p.UID] = true // it has to stay, whatever the label is
		return nil
	}
	if ns.When != policy.Remote && ns.To == "" { // all that it needs can be added
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion},
			"spec": map[string]any{"tolerations": tolerations}})
		if err != nil {
			return err
		}
		_, err = w.home.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: policy.FieldManager})
		return unlessGone(err)
	}
	if replaceable(p) {
		return w.replace(ctx, p)
	}
	w.decided[p.UID] = true // a Job would count it as a failure, and a bare pod would not be replaced
	w.recorder.Event(p, corev1.EventTypeWarning, "OffloadTooLate", fmt.Sprintf(
		"made before namespace %s was offloaded, and where a pod may run cannot be changed; delete it and make it again", p.Namespace))
	return nil
}

// reportFull reports, once, on a waiting pod of a namespace whose quota refuses another one like it.
func (w *pendingPods) reportFull(p *corev1.Pod) {
	if w.full[p.UID] || policy.KeptHome(p) || translate.Refuse(p) != nil {
		return
	}
	w.full[p.UID] = true
	w.recorder.Event(p, corev1.EventTypeWarning, "OffloadTooLate", fmt.Sprintf(
		"a ResourceQuota of namespace %s is full, so whether this pod may leave home cannot be found out; raise the quota; or, if the pod was made before its namespace was offloaded, delete it and make it again", p.Namespace))
}

// replaceable reports whether the pod's controller makes another when it is deleted, and counts that as no failure.
func replaceable(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && (owner.Kind == "ReplicaSet" || owner.Kind == "StatefulSet" || owner.Kind == "ReplicationController")
}

// replace deletes exactly this pod, as it was seen.
func (w *pendingPods) replace(ctx context.Context, p *corev1.Pod) error {
	return unlessGone(w.home.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion}}))
}
