package pod

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
)

// depart removes a pod that is being deleted at home from the target, and releases it at home only after the target has
// confirmed that it is gone there. While the target is unreachable the pod stays Terminating: a pod of a StatefulSet or
// a Job must not start a second time elsewhere.
func (c *Controller) depart(ctx context.Context, home *corev1.Pod) error {
	if cond := translate.Condition(&home.Status, translate.OffloadedCondition); cond != nil && cond.Status == corev1.ConditionFalse && !c.memory.isUnsure(home.UID) {
		return c.release(ctx, home) // it was never sent
	}
	t, err := c.watched(ctx, home.Namespace)
	switch {
	case err != nil:
		return err
	case t == nil:
		return c.release(ctx, home)
	}
	if !t.Synced() {
		return nil // the twin queues it again
	}
	if have := t.WrappersOf(home.UID); len(have) > 0 {
		if standing := slices.DeleteFunc(slices.Clone(have), translate.Wrapper.Ending); len(standing) > 0 {
			if told, err := c.reportEnd(ctx, t, home, standing[0]); err != nil || !told {
				return err
			}
			for _, w := range standing {
				if err := t.Remove(ctx, w, home.DeletionGracePeriodSeconds); err != nil {
					return c.heldUp(home, c.twinError(ctx, t, err))
				}
			}
		}
		if err := t.Hasten(ctx, home); err != nil {
			return c.heldUp(home, c.twinError(ctx, t, err))
		}
		return c.follow(ctx, home, t.Away(home.UID, have[0]))
	}
	if p := translate.Current(t.PodsOf(home.UID)); p != nil {
		return c.follow(ctx, home, translate.Away{Pod: p})
	}
	// The caches may lag behind this process's own create, so the API is read.
	if stands, err := c.live(ctx, t, home); err != nil || stands {
		return cmp.Or(err, errNotYet)
	}
	if s := t.Tokens(home.UID); s != nil {
		if err := t.RemoveTokens(ctx, s); err != nil {
			return c.twinError(ctx, t, err)
		}
	}
	return c.release(ctx, home)
}

// reportEnd reports whether home has the end of the pod's Job, if there is one. The end is lost when the Job is
// deleted, and the owner of a pod that vanished without an end makes it again. After a cut the caches may still show a
// running Job, so the API is read.
func (c *Controller) reportEnd(ctx context.Context, t *twin.Twin, home *corev1.Pod, w translate.Wrapper) (bool, error) {
	if w.Job == nil || translate.Terminal(home.Status.Phase) {
		return true, nil
	}
	live, err := t.Get(ctx, w)
	switch {
	case apierrors.IsNotFound(err):
		return false, errNotYet // the cache lags
	case err != nil:
		return false, c.twinError(ctx, t, err)
	case !live.IsOf(home.UID), !translate.Terminal(t.Away(home.UID, live).Finished):
		return true, nil
	case !translate.Terminal(t.Away(home.UID, w).Finished):
		return false, errNotYet // the watches will bring it, with the pod's last status
	}
	return false, c.follow(ctx, home, t.Away(home.UID, live)) // its write queues the pod again
}

// heldUp reports, in an event, that the provider refuses to end the pod.
func (c *Controller) heldUp(home *corev1.Pod, err error) error {
	if replacement.Refused(err) {
		c.cfg.Home.Recorder.Eventf(home, corev1.EventTypeWarning, translate.ReasonNotEnded, "%s refuses to end this pod, which runs on there, and is asked again: %v", c.cfg.Target.Name(), err)
	}
	return err
}

// release writes how the pod ended and lets it be deleted at home.
func (c *Controller) release(ctx context.Context, home *corev1.Pod) error {
	c.memory.accepted(home.UID)
	c.forget(home)
	if err := c.write(ctx, home, translate.Ended(translate.WithEnd(home, c.ends.Get(home.UID)), "")); err != nil {
		return err
	}
	err := c.cfg.Home.Client.CoreV1().Pods(home.Namespace).Delete(ctx, home.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &home.UID}})
	if apierrors.IsConflict(err) {
		return nil // another pod has that name now
	}
	return twin.IgnoreGone(err)
}

// sweep removes what the target still has for earlier pods of this name. home is the pod with that name, or nil.
func (c *Controller) sweep(ctx context.Context, t *twin.Twin, k types.NamespacedName, home *corev1.Pod) error {
	for _, w := range t.WrappersNamed(k.Name) {
		if home != nil && w.IsOf(home.UID) {
			continue
		}
		if err := c.removeOrphan(ctx, t, w); err != nil {
			return c.twinError(ctx, t, err)
		}
	}
	return c.sweepTokens(ctx, t, k, home)
}

// removeOrphan deletes a wrapper after home's API has confirmed that its pod is gone; an outdated cache must never end
// a running pod.
func (c *Controller) removeOrphan(ctx context.Context, t *twin.Twin, w translate.Wrapper) error {
	obj := w.Object()
	if w.Ending() {
		return nil
	}
	uid, name := obj.GetLabels()[policy.HomeUIDLabel], obj.GetAnnotations()[policy.HomePodAnnotation]
	if err := confirmGone(ctx, c.cfg.Home.Client, t.Home, name, uid); err != nil {
		return err
	}
	c.cfg.Log.Info("removing what is left of a pod that is gone", "namespace", t.Home, "pod", name, "uid", uid)
	return t.Remove(ctx, w, nil)
}

// confirmGone reads home's API; errNotYet means that the pod exists.
func confirmGone(ctx context.Context, client kubernetes.Interface, namespace, name, uid string) error {
	p, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && string(p.UID) == uid:
		return errNotYet
	case err != nil && !apierrors.IsNotFound(err):
		return err
	}
	return nil
}
