package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/offload/target"
)

// errNotYet asks for another look a little later.
var errNotYet = target.ErrNotYet

// reconcile brings one pod of home and the target into step. Every decision is
// taken from what is there now, never from what was done before.
func (c *Controller) reconcile(ctx context.Context, k types.NamespacedName) error {
	home := c.home(k)
	c.ends.keep(k, home)
	t := c.twins.get(k.Namespace)
	if t != nil && t.synced() {
		if err := c.sweep(ctx, t, k, home); err != nil {
			return err
		}
	}
	switch {
	case home == nil:
		return nil
	case home.DeletionTimestamp != nil:
		return c.depart(ctx, home)
	case terminal(home.Status.Phase):
		return nil // what is left of it away stays for its logs until it is deleted here
	case !c.cfg.Offloaded(k.Namespace):
		return c.unwanted(ctx, home)
	case c.lost() && c.wasSent(home):
		return c.write(ctx, home, Unready(home, c.cfg.Target.Name()+" does not answer"))
	}

	if r := Refuse(home); r != nil {
		return c.refuseForGood(ctx, home, r.Error())
	}
	name, err := c.cfg.Target.Namespace(ctx, k.Namespace)
	if err != nil {
		return c.trouble(ctx, home, err)
	}
	t = c.watch(k.Namespace, name)
	if !t.synced() {
		return nil // the twin calls again when it is
	}
	have := t.wrappers(byUID, string(home.UID))
	if not, why := t.lacks(); not && len(have) == 0 {
		if why != nil {
			return c.trouble(ctx, home, why)
		}
		return nil // the twin calls again
	}
	var api string
	if !c.cfg.NoHomeAPI {
		api, err = t.homeAPI(ctx) // empty with an error
	}
	if err != nil && len(have) == 0 {
		return c.trouble(ctx, home, c.twinError(ctx, t, err))
	}
	want, err := Wrap(home, c.cfg.Cluster, api)
	if err != nil {
		return c.refuseForGood(ctx, home, err.Error())
	}
	now := time.Now()
	if left, ok := timeLeft(home, now); ok && left <= 0 {
		return c.expire(ctx, home, t)
	} else if ok {
		c.queue.AddAfter(k, left)
	}
	if len(have) == 0 {
		if c.cfg.Platform != nil {
			os, arch := c.cfg.Platform(home.Spec.NodeName)
			pin(want.template(), os, arch)
		}
		if c.cfg.HomeAddresses != nil {
			if made := c.cfg.HomeAddresses(); made != "" {
				if err := c.withHomeAddresses(ctx, home, t, want.template(), made); err != nil {
					return c.trouble(ctx, home, err)
				}
			}
		}
		return c.send(ctx, home, t, want)
	}
	withSameAddresses(want.template(), have[0].template())
	if api == "" { // not known at the moment
		want.template().Spec.HostAliases = have[0].template().Spec.HostAliases
	}
	if back, err := c.takeBack(ctx, home, t, have[0]); err != nil || back {
		return err
	}
	if err := c.alter(ctx, t, home, have[0], want); err != nil {
		return err
	}
	var refused []corev1.ContainerStatus
	if have[0].Object().GetDeletionTimestamp() == nil {
		refused, err = c.debug(ctx, t, home)
		err = errors.Join(err, c.keepTokens(ctx, t, home), c.keepServices(ctx, t, Current(t.podsOf(home.UID))), c.mismatch(ctx, home, Current(t.podsOf(home.UID))))
	}
	away := awayOf(t, home.UID, have[0])
	st := Status(home, away, c.view(home))
	st.EphemeralContainerStatuses = withRefused(st.EphemeralContainerStatuses, refused)
	if wait := c.holdBack(home, away, st, time.Now(), c.busy()); wait > 0 {
		c.queue.AddAfter(k, wait)
		return err
	}
	c.copyGrace(home, away.Pod)
	return errors.Join(err, c.writeStatus(ctx, home, st))
}

// copyGrace tells once of a grace period that the provider has lowered; what home's status says of it
// is all that is remembered.
func (c *Controller) copyGrace(home, away *corev1.Pod) {
	shorter := shorterGrace(home, away)
	if cond := condition(&home.Status, OffloadedCondition); shorter == "" || cond != nil && strings.Contains(cond.Message, shorter) {
		return
	}
	c.cfg.Recorder.Eventf(home, corev1.EventTypeWarning, ReasonShorter,
		"%s %s: a peer bounds it to 10 minutes, and to 45 s with a preStop hook; leave the hook out, have it done in that time, or keep the pod at home (rivulet.dev/offload=off)", home.Spec.NodeName, shorter)
}

func (c *Controller) view(home *corev1.Pod) View {
	return View{Node: home.Spec.NodeName, HostIP: c.cfg.HostIP, Home: c.cfg.Target.Home, Words: c.cfg.Words}
}

// awayOf gathers what the provider says of one pod.
func awayOf(t *twin, uid types.UID, w Wrapper) Away {
	var a Away
	if w.Job != nil {
		a = ofJob(w.Job)
	}
	a.Pod, a.last = Current(t.podsOf(uid)), t.ends.get(uid)
	if w.ReplicaSet != nil {
		for _, cond := range w.ReplicaSet.Status.Conditions {
			if cond.Type == appsv1.ReplicaSetReplicaFailure && cond.Status == corev1.ConditionTrue {
				a.Trouble = cond.Message
			}
		}
	}
	return a
}

// send makes the wrapper. A Job whose pod had started and that is gone is not
// made again: nobody could tell whether its work was done.
func (c *Controller) send(ctx context.Context, home *corev1.Pod, t *twin, want Wrapper) error {
	if len(t.podsOf(home.UID)) > 0 {
		return errNotYet // the last ones are still going
	}
	if c.justSent(home) {
		return nil // its watch is about to show it
	}
	if c.isTurnedDown(home) {
		return c.comeHome(ctx, home)
	}
	if cond := condition(&home.Status, OffloadedCondition); cond != nil && cond.Status == corev1.ConditionFalse {
		// It says that nothing runs away, which a deletion goes by: first it is taken back.
		st := *home.Status.DeepCopy()
		st.Conditions = slices.DeleteFunc(st.Conditions, func(c corev1.PodCondition) bool { return c.Type == OffloadedCondition })
		return c.write(ctx, home, st) // its watch calls again
	}
	if c.isUnsure(home) { // a second one beside the first would find its name or its quota taken, and wait as a ReplicaSet
		if err := c.settle(ctx, home); err != nil {
			return err
		}
		if c.wasSent(home) {
			return errNotYet // the cache lags
		}
	}
	if home.Status.StartTime != nil {
		live, err := c.find(ctx, t, home, want)
		switch {
		case err == nil && ours(live, home.UID):
			return errNotYet // the cache lags
		case err != nil && !apierrors.IsNotFound(err):
			return c.twinError(ctx, t, err)
		case apierrors.IsNotFound(err) && want.Job != nil:
			c.cfg.Recorder.Eventf(home, corev1.EventTypeWarning, ReasonGone,
				"the Job that ran this pod on %s was deleted there; it is not run a second time", c.cfg.Target.Name())
			return c.writeStatus(ctx, home, Ended(withEnd(home, c.ends.get(home.UID)), corev1.PodFailed))
		}
	}
	there := func(err error) error {
		return c.refuseForGood(ctx, home, fmt.Sprintf("offload: %s does not take this pod: %s", c.cfg.Target.Name(), err))
	}
	if c.isRefused(home) && (want.Job != nil || !c.keeps()) { // by a controller, which tells it by an event only
		if err := c.rehearse(ctx, t, want); err != nil {
			return there(err)
		}
	}
	brought := make(chan error, 1)
	go func() { brought <- c.bring(ctx, home) }()
	err := c.sendTokens(ctx, t, home)
	if err = errors.Join(err, <-brought); errors.Is(err, errNotYet) {
		return errNotYet
	} else if err != nil {
		return c.trouble(ctx, home, err)
	}
	if err := c.awayClaims(ctx, home.Namespace, want.template()); err != nil {
		return c.trouble(ctx, home, err)
	}
	waits := want
	if want.ReplicaSet != nil && c.keeps() {
		want = asRecord(want, home)
	}
	made, err := t.create(ctx, want)
	if replacement.ForGood(err) {
		return there(err)
	}
	if want.Pod != nil && replacement.Refused(err) {
		want = waits // for room, and it says what it waits for
		made, err = t.create(ctx, want)
	}
	if unknownOutcome(err) {
		c.setUnsure(home, true)
	}
	if apierrors.IsAlreadyExists(err) {
		live, err := t.get(ctx, want)
		if err == nil && want.Pod != nil && !replacement.IsRecord(live.Pod) {
			return c.trouble(ctx, home, fmt.Errorf("pod %s in %s is somebody else's; delete it there, or rename this one", want.Pod.Name, t.name))
		}
		if err == nil && !ours(live, home.UID) {
			err = c.removeOrphan(ctx, t, live)
		}
		return errors.Join(err, errNotYet)
	}
	if err != nil {
		return c.trouble(ctx, home, c.twinError(ctx, t, err))
	}
	if name := want.template().Spec.HostnameOverride; name != nil && made.template().Spec.HostnameOverride == nil {
		c.cfg.Recorder.Eventf(home, corev1.EventTypeWarning, "OffloadOtherHostname",
			"%s does not know hostnameOverride: the host name of the pod there is not %s; update its Kubernetes to 1.35, or keep the pod at home", c.cfg.Target.Name(), *name)
	}
	c.accepted(home.UID)
	// That it was sent is told with what comes of it (holdBack). It is no event either:
	// the scheduler has told where to.
	c.unstarted.sent(home.UID)
	c.noteSent(home)
	c.queue.AddAfter(keyOf(home), soon)
	return nil
}

func (c *Controller) noteSent(home *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[home.UID] = time.Now()
}

// find reads from the API what stands for the pod of home, whichever it is that was made
// first; like is what a target has that keeps no pods. Where there is nothing of this
// pod's the error is that of like's kind.
func (c *Controller) find(ctx context.Context, t *twin, home *corev1.Pod, like Wrapper) (Wrapper, error) {
	if like.ReplicaSet != nil && c.cfg.Keeps != nil {
		p, err := t.get(ctx, Wrapper{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: like.Object().GetName()}}})
		if err == nil && ours(p, home.UID) || err != nil && !apierrors.IsNotFound(err) {
			return p, err
		}
	}
	return t.get(ctx, like)
}

// twinError drops a twin that is gone from the target, so that the next try
// asks for a new one.
func (c *Controller) twinError(ctx context.Context, t *twin, err error) error {
	if (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) && c.checkTwin(ctx, t.home) {
		return errNotYet // our rights went with it
	}
	return err
}

// trouble shows on a pod that has not started what keeps it from starting.
func (c *Controller) trouble(ctx context.Context, home *corev1.Pod, err error) error {
	if home.Status.StartTime == nil {
		st := *home.Status.DeepCopy()
		st.Phase, st.Reason, st.Message = forward(st.Phase, corev1.PodPending), ReasonPending,
			fmt.Sprintf("on %s: %s", c.cfg.Target.Name(), c.cfg.Words.Of(err.Error()))
		err = errors.Join(err, c.write(ctx, home, st))
	}
	return err
}

// refuse says so on the pod, once, unless it runs away.
func (c *Controller) refuse(ctx context.Context, home *corev1.Pod, why string) (refused bool, err error) {
	if stands, err := c.stands(ctx, home); err != nil {
		return false, err
	} else if stands {
		return false, c.showSent(ctx, home)
	}
	why = c.cfg.Words.Of(why)
	if c.setRefused(home, why) != why && (home.Status.Reason != ReasonRefused || home.Status.Message != why) {
		c.cfg.Recorder.Event(home, corev1.EventTypeWarning, ReasonRefused, why)
	}
	st := Refused(home, why)
	if nobodys(home) && !terminal(st.Phase) {
		c.turnDown(home, &st)
	}
	return true, c.write(ctx, home, st)
}

func (c *Controller) accepted(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.refused, uid)
}

// unwanted deals with a pod whose namespace is not offloaded. One that never
// went away is refused; one that did is deleted, so that its owner makes it
// again at home. What it had away goes with the twin.
func (c *Controller) unwanted(ctx context.Context, home *corev1.Pod) error {
	if err := c.settle(ctx, home); err != nil {
		return err
	}
	if known, err := c.knowsTwin(ctx, home); err != nil || !known {
		return err
	}
	if !c.wasSent(home) {
		// Whoever offloads a namespace and makes a pod may be faster than the watch of namespaces.
		if c.cfg.Check != nil {
			if err := c.cfg.Check(ctx, home.Namespace); err != nil {
				return err
			}
			if c.cfg.Offloaded(home.Namespace) {
				return errNotYet
			}
		}
		_, err := c.refuse(ctx, home, fmt.Sprintf("offload: namespace %s is not offloaded; rivulet offload %s; or: keep the pod off virtual nodes",
			home.Namespace, home.Namespace))
		return err
	}
	ns, err := c.cfg.Home.CoreV1().Namespaces().Get(ctx, home.Namespace, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil {
		if live, _ := c.cfg.Parse(ns); live.When != policy.Off { // a label that is not understood counts as off
			return errNotYet // the watcher of namespaces lags
		}
	}
	return c.giveBack(ctx, home)
}

// knowsTwin reports whether what stands away for the pod would be known; if not, the
// twin calls again when it is. Of one that was sent just before a restart only the
// target tells, and the twins of namespaces that are not offloaded are not watched.
func (c *Controller) knowsTwin(ctx context.Context, home *corev1.Pod) (bool, error) {
	if condition(&home.Status, OffloadedCondition) != nil {
		return true, nil
	}
	t, err := c.watched(ctx, home.Namespace)
	return err == nil && (t == nil || t.synced()), err
}

// writeStatus writes what is known from the target, unless it cannot be reached:
// what was seen last says nothing then.
func (c *Controller) writeStatus(ctx context.Context, home *corev1.Pod, st corev1.PodStatus) error {
	if !c.cfg.Up() {
		return nil
	}
	return c.write(ctx, home, st)
}

// write is guarded by the version that st was made from, so that conditions of
// other writers are never lost.
func (c *Controller) write(ctx context.Context, home *corev1.Pod, st corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(st, home.Status) {
		return nil
	}
	p := home.DeepCopy()
	p.Status = st
	_, err := c.cfg.Home.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return ignoreGone(err)
}

func keyOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

func ours(w Wrapper, uid types.UID) bool {
	return w.Object().GetLabels()[policy.HomeUIDLabel] == string(uid)
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
