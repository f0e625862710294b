package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/offload/target"
)

// errNotYet causes a retry shortly.
var errNotYet = target.ErrNotYet

// reconcile makes the target match one pod of home. Every decision is made from the current state, never from earlier
// actions.
func (c *Controller) reconcile(ctx context.Context, k types.NamespacedName) error {
	home := c.home(k)
	c.ends.Keep(k, home)
	t := c.twins.Get(k.Namespace)
	if t != nil && t.Synced() {
		if err := c.sweep(ctx, t, k, home); err != nil {
			return err
		}
	}
	switch {
	case home == nil:
		return nil
	case home.DeletionTimestamp != nil:
		return c.depart(ctx, home)
	case translate.Terminal(home.Status.Phase):
		return nil // what is left away stays for its logs until the pod is deleted here
	case !c.offloaded(k.Namespace):
		return c.unwanted(ctx, home)
	case c.lost() && c.wasSent(home):
		return c.write(ctx, home, translate.Unready(home, c.cfg.Target.Name()+" does not answer"))
	}

	if r := translate.Refuse(home); r != nil {
		return c.refuseForGood(ctx, home, r.Error(), false)
	}
	name, err := c.cfg.Target.Namespace(ctx, k.Namespace)
	if err != nil {
		return c.trouble(ctx, home, err)
	}
	t = c.watch(k.Namespace, name)
	if !t.Synced() {
		return nil // the twin queues it when it is ready
	}
	have := t.WrappersOf(home.UID)
	if not, why := t.Lacks(); not && len(have) == 0 {
		if why != nil {
			return c.trouble(ctx, home, why)
		}
		return nil // the twin queues it again
	}
	var api string
	if !c.cfg.NoHomeAPI {
		api, err = t.HomeAPI(ctx) // empty with an error
	}
	if err != nil && len(have) == 0 {
		return c.trouble(ctx, home, c.twinError(ctx, t, err))
	}
	want, err := translate.Wrap(home, c.cfg.Home.ID, api)
	if err != nil {
		return c.refuseForGood(ctx, home, err.Error(), false)
	}
	now := time.Now()
	if left, ok := translate.TimeLeft(home, now); ok && left <= 0 {
		return c.expire(ctx, home, t)
	} else if ok {
		c.queue.AddAfter(k, left)
	}
	if len(have) == 0 {
		os, arch := c.cfg.Nodes.Platform(home.Spec.NodeName)
		translate.Pin(want.Template(), os, arch)
		if c.rivulet != nil {
			if made := c.rivulet.HomeAddresses(); made != "" {
				if err := c.withHomeAddresses(ctx, home, t, want.Template(), made); err != nil {
					return c.trouble(ctx, home, err)
				}
			}
		}
		return c.send(ctx, home, t, want)
	}
	translate.WithSameAddresses(want.Template(), have[0].Template())
	if api == "" { // not known yet
		want.Template().Spec.HostAliases = have[0].Template().Spec.HostAliases
	}
	if back, err := c.takeBack(ctx, home, t, have[0], want); err != nil || back {
		return err
	}
	if err := c.alter(ctx, t, home, have[0], want); err != nil {
		return err
	}
	var refused []corev1.ContainerStatus
	if have[0].Object().GetDeletionTimestamp() == nil {
		refused, err = c.debug(ctx, t, home)
		err = errors.Join(err, c.keepTokens(ctx, t, home), c.keepServices(ctx, t, translate.Current(t.PodsOf(home.UID))), c.mismatch(ctx, home, translate.Current(t.PodsOf(home.UID))))
	}
	away := t.Away(home.UID, have[0])
	st := translate.Status(home, away, c.view(home))
	st.EphemeralContainerStatuses = translate.WithRefused(st.EphemeralContainerStatuses, refused)
	if wait := c.holdBack(home, away, st, time.Now(), c.busy()); wait > 0 {
		c.queue.AddAfter(k, wait)
		return err
	}
	c.copyGrace(home, away.Pod)
	sayUnpermitted(c.cfg.Home.Recorder, home, st)
	return errors.Join(err, c.writeStatus(ctx, home, st))
}

// alter copies changes of the home pod; an event has the reason if the provider refuses one.
func (c *Controller) alter(ctx context.Context, t *twin.Twin, home *corev1.Pod, have, want translate.Wrapper) error {
	refused, err := t.Alter(ctx, home, have, want)
	if refused != nil {
		c.cfg.Home.Recorder.Event(home, corev1.EventTypeWarning, translate.ReasonRefused,
			fmt.Sprintf("%s does not take the change of this pod, which runs on as it was: %v; make it anew with the change", c.cfg.Target.Name(), refused))
	}
	return c.twinError(ctx, t, err)
}

// copyGrace reports, once, a grace period that the provider has lowered. The only memory of it is in home's status.
func (c *Controller) copyGrace(home, away *corev1.Pod) {
	shorter := translate.ShorterGrace(home, away)
	if cond := translate.Condition(&home.Status, translate.OffloadedCondition); shorter == "" || cond != nil && strings.Contains(cond.Message, shorter) {
		return
	}
	c.cfg.Home.Recorder.Eventf(home, corev1.EventTypeWarning, translate.ReasonShorter,
		"%s %s: a peer bounds it to 10 minutes, and to 45 s with a preStop hook; leave the hook out, have it done in that time, or keep the pod at home (label rivulet.dev/offload=off in its template)", home.Spec.NodeName, shorter)
}

func (x *index) view(home *corev1.Pod) translate.View {
	return translate.View{Node: home.Spec.NodeName, HostIP: x.cfg.Home.HostIP, Home: x.cfg.Target.Home, Words: x.cfg.Home.Words}
}

// send makes the wrapper. A Job whose pod had started and that is gone is not made again: whether its work was done is
// unknown.
func (c *Controller) send(ctx context.Context, home *corev1.Pod, t *twin.Twin, want translate.Wrapper) error {
	if len(t.PodsOf(home.UID)) > 0 {
		return errNotYet // the previous ones are still being deleted
	}
	if c.justSent(home) {
		return nil // the watch will bring it
	}
	if c.memory.isTurnedDown(home) {
		return c.leave(ctx, home, !c.memory.isNowhere(home.UID))
	}
	if cond := translate.Condition(&home.Status, translate.OffloadedCondition); cond != nil && cond.Status == corev1.ConditionFalse {
		// This condition says that nothing runs away, and a deletion relies on it, so it is removed first.
		st := *home.Status.DeepCopy()
		st.Conditions = slices.DeleteFunc(st.Conditions, func(c corev1.PodCondition) bool { return c.Type == translate.OffloadedCondition })
		return c.write(ctx, home, st) // its watch queues it again
	}
	if c.memory.isUnsure(home.UID) { // a second one would find the name or the quota of the first taken, and wait as a ReplicaSet
		if err := c.settle(ctx, home); err != nil {
			return err
		}
		if c.wasSent(home) {
			return errNotYet // the cache lags
		}
	}
	if home.Status.StartTime != nil {
		live, err := t.Find(ctx, home.UID, want, c.rivulet != nil)
		switch {
		case err == nil && live.IsOf(home.UID):
			return errNotYet // the cache lags
		case err != nil && !apierrors.IsNotFound(err):
			return c.twinError(ctx, t, err)
		case apierrors.IsNotFound(err) && want.Job != nil:
			c.cfg.Home.Recorder.Eventf(home, corev1.EventTypeWarning, translate.ReasonGone,
				"the Job that ran this pod on %s was deleted there; it is not run a second time", c.cfg.Target.Name())
			return c.writeStatus(ctx, home, translate.Ended(translate.WithEnd(home, c.ends.Get(home.UID)), corev1.PodFailed))
		}
	}
	there := func(err error) error {
		return c.refuseForGood(ctx, home, fmt.Sprintf("offload: %s does not take this pod: %s", c.cfg.Target.Name(), err), true)
	}
	if c.memory.isRefused(home) { // perhaps by a controller, which reports it by an event only, or fields were left out
		if err := t.Rehearse(ctx, want); err != nil {
			return there(err)
		}
	}
	brought := make(chan error, 1)
	go func() { brought <- panics.Call(func() error { return c.bring(ctx, home) }) }()
	err := c.sendTokens(ctx, t, home)
	if err = errors.Join(err, <-brought); errors.Is(err, errNotYet) {
		return errNotYet
	} else if stays, ok := errors.AsType[*policy.StaysHomeError](err); ok {
		return c.refuseForGood(ctx, home, stays.Error(), false)
	} else if err != nil {
		return c.trouble(ctx, home, err)
	}
	if err := c.awayClaims(ctx, home.Namespace, want.Template()); err != nil {
		if foreign := new(volume.Foreign); errors.As(err, &foreign) {
			return c.refuseForGood(ctx, home, "offload: "+foreign.Error()+"; let the namespace run at home, too: rivulet offload "+home.Namespace+" --when burst; or keep the pod at home (label rivulet.dev/offload=off in its template), or make the claim again with storageClassName: local-path", false)
		}
		return c.trouble(ctx, home, err)
	}
	waits := want
	if want.ReplicaSet != nil && c.keeps() {
		want = translate.AsRecord(want, home)
	}
	made, err := t.Create(ctx, want)
	if replacement.ForGood(err) {
		return there(err)
	}
	if want.Pod != nil && replacement.Refused(err) {
		want = waits // for capacity, with the reason
		made, err = t.Create(ctx, want)
	}
	if unknownOutcome(err) {
		c.memory.setUnsure(home.UID, true)
	}
	if apierrors.IsAlreadyExists(err) {
		live, err := t.Get(ctx, want)
		if err == nil && want.Pod != nil && !replacement.IsRecord(live.Pod) {
			return c.trouble(ctx, home, fmt.Errorf("pod %s in %s is somebody else's; delete it there, or rename this one", want.Pod.Name, t.Name))
		}
		if err == nil && !live.IsOf(home.UID) {
			err = c.removeOrphan(ctx, t, live)
		}
		return errors.Join(err, errNotYet)
	}
	if err != nil {
		return c.trouble(ctx, home, c.twinError(ctx, t, err))
	}
	if name := want.Template().Spec.HostnameOverride; name != nil && made.Template().Spec.HostnameOverride == nil {
		c.cfg.Home.Recorder.Eventf(home, corev1.EventTypeWarning, "OffloadOtherHostname",
			"%s does not know hostnameOverride: the host name of the pod there is not %s; update its Kubernetes to 1.35, or keep the pod at home (label rivulet.dev/offload=off in its template)", c.cfg.Target.Name(), *name)
	}
	if err := translate.Dropped(&want.Template().Spec, &made.Template().Spec); err != nil {
		c.memory.setRefused(home.UID, err.Error())
		return errors.Join(c.twinError(ctx, t, t.Remove(ctx, made, new(int64))), errNotYet)
	}
	c.memory.accepted(home.UID)
	// The status shows it together with what follows (holdBack). There is no event either, since the scheduler's event
	// has the node.
	c.unstarted.sent(home.UID)
	c.memory.setSent(home.UID)
	c.queue.AddAfter(keyOf(home), soon)
	return nil
}

// twinError drops a twin that is gone from the target, so that the next attempt requests a new one.
func (c *Controller) twinError(ctx context.Context, t *twin.Twin, err error) error {
	if (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) && c.checkTwin(ctx, t.Home) {
		return errNotYet // this cluster's rights ended with it
	}
	return err
}

// trouble shows on a pod that has not started what prevents it.
func (c *Controller) trouble(ctx context.Context, home *corev1.Pod, err error) error {
	if home.Status.StartTime == nil {
		st := *home.Status.DeepCopy()
		st.Phase, st.Reason, st.Message = translate.Forward(st.Phase, corev1.PodPending), translate.ReasonPending,
			fmt.Sprintf("on %s: %s", c.cfg.Target.Name(), c.cfg.Home.Words.Of(err.Error()))
		err = errors.Join(err, c.write(ctx, home, st))
	}
	return err
}

// refuse shows the reason on the pod, once, unless it runs away.
func (c *Controller) refuse(ctx context.Context, home *corev1.Pod, why string) (refused bool, err error) {
	if stands, err := c.stands(ctx, home); err != nil {
		return false, err
	} else if stands {
		return false, c.showSent(ctx, home)
	}
	why = c.cfg.Home.Words.Of(why)
	if c.memory.setRefused(home.UID, why) != why && (home.Status.Reason != translate.ReasonRefused || home.Status.Message != why) {
		c.cfg.Home.Recorder.Event(home, corev1.EventTypeWarning, translate.ReasonRefused, why)
	}
	st := translate.Refused(home, why)
	if nobodys(home) && !translate.Terminal(st.Phase) {
		c.turnDown(home, &st)
	}
	return true, c.write(ctx, home, st)
}

// unwanted handles a pod whose namespace is not offloaded. One that was never sent is refused; one that was is deleted,
// so that its owner makes it again at home. The rest goes with the twin.
func (c *Controller) unwanted(ctx context.Context, home *corev1.Pod) error {
	if err := c.settle(ctx, home); err != nil {
		return err
	}
	if known, err := c.knowsTwin(ctx, home); err != nil || !known {
		return err
	}
	if !c.wasSent(home) {
		// A user who offloads a namespace and creates a pod may be faster than the watch of namespaces.
		if err := c.cfg.Namespaces.Check(ctx, home.Namespace); err != nil {
			return err
		}
		if c.offloaded(home.Namespace) {
			return errNotYet
		}
		_, err := c.refuse(ctx, home, fmt.Sprintf("offload: namespace %s is not offloaded; rivulet offload %s; or: keep the pod off virtual nodes",
			home.Namespace, home.Namespace))
		return err
	}
	ns, err := c.cfg.Home.Client.CoreV1().Namespaces().Get(ctx, home.Namespace, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil {
		if live, _ := c.cfg.Namespaces.Parse(ns); live.Sends() { // an invalid label counts as off
			return errNotYet // the watcher of namespaces lags
		}
	}
	return c.giveBack(ctx, home)
}

// knowsTwin reports whether the pod's wrapper, if there is one, is in a cache; if not, the twin queues the pod when it
// is. After a restart only the target has what was sent just before, and twins of namespaces that are not offloaded are
// not watched.
func (c *Controller) knowsTwin(ctx context.Context, home *corev1.Pod) (bool, error) {
	if translate.Condition(&home.Status, translate.OffloadedCondition) != nil {
		return true, nil
	}
	t, err := c.watched(ctx, home.Namespace)
	return err == nil && (t == nil || t.Synced()), err
}

// writeStatus writes a status from the target's state, unless the target is unreachable and its last state outdated.
func (c *Controller) writeStatus(ctx context.Context, home *corev1.Pod, st corev1.PodStatus) error {
	if !c.cfg.Nodes.Up() {
		return nil
	}
	return c.write(ctx, home, st)
}

// write is guarded by the version that st was made from, so that conditions of other writers are never lost.
func (c *Controller) write(ctx context.Context, home *corev1.Pod, st corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(st, home.Status) {
		return nil
	}
	p := home.DeepCopy()
	p.Status = st
	_, err := c.cfg.Home.Client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return twin.IgnoreGone(err)
}

func keyOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}
