package translate

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/fabric/peer"
	"rivulet/offload/foreign"
	"rivulet/offload/replacement"
)

// Ungenerated is the status without the generations it was made from.
func Ungenerated(st corev1.PodStatus) corev1.PodStatus {
	out := *st.DeepCopy()
	out.ObservedGeneration = 0
	for i := range out.Conditions {
		out.Conditions[i].ObservedGeneration = 0
	}
	return out
}

// Reasons on a home pod while nothing runs for it.
const (
	ReasonRefused       = "OffloadRefused"       // it cannot or may not run away
	ReasonPending       = "OffloadPending"       // the provider has not made it yet
	ReasonUnschedulable = "OffloadUnschedulable" // the provider has no node for it
	ReasonGated         = "OffloadGated"         // the provider holds it by a scheduling gate of its own
	ReasonGone          = "OffloadGone"          // it ran away and is gone
	ReasonLost          = "ProviderLost"         // its provider is silent (condition Ready)
	ReasonNotEnded      = "OffloadNotEnded"      // it was deleted, and the provider refuses to end it (event)
	ReasonShorter       = "OffloadShorterGrace"  // the provider ends it sooner than its grace period (event)
)

// OffloadedCondition is True on a pod that was sent away, and False, with ReasonRefused, on one that never was.
const OffloadedCondition corev1.PodConditionType = "rivulet.dev/Offloaded"

// Away is the provider's state of one pod of home.
type Away struct {
	// Pod represents the home pod now; nil if the wrapper has none.
	Pod *corev1.Pod
	// Finished is Succeeded or Failed once the wrapper is a Job that ended.
	Finished corev1.PodPhase
	// Failure names the container whose exit, Code, failed the Job; "" if there is none or it is unknown.
	Failure string
	Code    int32
	// Expired: the Job failed because of its deadline.
	Expired bool
	// Trouble is why the wrapper can make no pod, or has failed, in the provider's words.
	Trouble string
	// before is how the predecessor of Pod ended, or the pod that is to be replaced.
	before replacement.Ending
	// last is the last state of the last pod, nil if unknown.
	Last *corev1.Pod
}

// View is how home sees the target.
type View struct {
	Node   string     // the virtual node's name
	HostIP netip.Addr // the virtual node's address
	// Home translates an address of the target's pods to home's.
	Home  func(netip.Addr) (netip.Addr, bool)
	Words Words
}

// Words puts a text for home's users into home's terms. It is idempotent; nil changes nothing.
type Words func(string) string

// Of is the text in these terms.
func (w Words) Of(text string) string {
	if w == nil {
		return text
	}
	return w(text)
}

// Status translates the provider's state into the status of the home pod. It is pure and idempotent: applied to its own
// result it changes nothing. A pod that ended stays ended, and no phase goes back.
func Status(home *corev1.Pod, away Away, view View) corev1.PodStatus {
	if Terminal(home.Status.Phase) {
		return *home.Status.DeepCopy()
	}
	for _, p := range []**corev1.Pod{&away.Pod, &away.Last} { // before anything is compared with what home has, which is clean
		if *p != nil {
			*p = (*p).DeepCopy()
			peer.Clean(&(*p).Status, peer.Prose)
		}
	}
	st := status(home, away, view)
	out := st.DeepCopy() // parts of it are shared with the cache
	peer.Clean(out, peer.Prose)
	if foreign.Quantities(out) != nil { // home's API server would calculate with them
		out.AllocatedResources, out.Resources = nil, nil
		for _, all := range [][]corev1.ContainerStatus{out.InitContainerStatuses, out.ContainerStatuses, out.EphemeralContainerStatuses} {
			for i := range all {
				all[i].AllocatedResources, all[i].Resources = nil, nil
			}
		}
	}
	return *out
}

func status(home *corev1.Pod, away Away, view View) corev1.PodStatus {
	st := *home.Status.DeepCopy()
	st.ObservedGeneration = home.Generation
	st.HostIP = view.HostIP.String()
	st.HostIPs = []corev1.HostIP{{IP: st.HostIP}}
	st.NominatedNodeName = ""
	p := away.Pod
	sent := corev1.PodCondition{Type: OffloadedCondition, Status: corev1.ConditionTrue, Reason: "Sent",
		Message: "runs on " + view.Node, LastTransitionTime: metav1.Now()}
	if shorter := ShorterGrace(home, p); shorter != "" {
		sent.Message += ", which " + shorter
	}
	if held := heldThere(p); held != "" {
		sent.Message = "sent to " + view.Node + "; " + held
	}
	setCondition(home, &st, sent)

	going := home.DeletionTimestamp != nil && away.Finished == ""
	if p != nil && !going && replaced(p, RestartPolicy(home), away.Finished) {
		away.Trouble, away.before, p = fmt.Sprintf("the last pod ended: %s %s", p.Status.Reason, p.Status.Message), replacement.EndOf(p), nil
	} else if p != nil {
		away.before = replacement.Before(p)
		if last := away.Last; len(away.before.Containers) == 0 && last != nil && last.UID != p.UID {
			away.before = replacement.EndOf(last) // of pods that are replaced before they have ended
		}
	}
	if p == nil {
		withoutPod(home, &st, away, view)
		return st
	}

	from := &p.Status
	if st.StartTime == nil && from.StartTime != nil {
		st.StartTime = new(timeAtHome(*from.StartTime, home.CreationTimestamp))
	}
	if !going || !Terminal(from.Phase) || RestartPolicy(home) == corev1.RestartPolicyNever {
		st.Phase = Forward(st.Phase, from.Phase) // for the excluded ones release decides
	}
	st.Reason, st.Message = from.Reason, from.Message
	st.PodIP, st.PodIPs = homeIPs(from, view)
	st.InitContainerStatuses = Containers(home.Status.InitContainerStatuses, from.InitContainerStatuses, home.Spec.InitContainers, RestartPolicy(home), away.before.Containers)
	st.ContainerStatuses = Containers(home.Status.ContainerStatuses, from.ContainerStatuses, home.Spec.Containers, RestartPolicy(home), away.before.Containers)
	st.EphemeralContainerStatuses = debuggers(home, from.EphemeralContainerStatuses)
	st.AllocatedResources, st.Resources = podResources(&home.Spec, from)

	for _, c := range from.Conditions {
		switch c.Type {
		case corev1.PodScheduled:
			if held := heldThere(p); held != "" {
				st.Reason, st.Message = ReasonGated, fmt.Sprintf("on %s: %s", view.Node, held)
			} else if c.Status == corev1.ConditionFalse {
				st.Reason, st.Message = ReasonUnschedulable, fmt.Sprintf("on %s: %s", view.Node, view.Words.Of(c.Message))
			}
		case corev1.PodReady: // below, with home's gates
		case OffloadedCondition: // home's own
		default:
			setCondition(home, &st, c)
		}
	}
	setCondition(home, &st, ready(home, Condition(from, corev1.PodReady)))
	return st
}

// heldThere is the text if the target holds the pod by scheduling gates; home's gates are not sent.
func heldThere(away *corev1.Pod) string {
	if away == nil || len(away.Spec.SchedulingGates) == 0 {
		return ""
	}
	gate, more := peer.Line(away.Spec.SchedulingGates[0].Name, 80), ""
	if n := len(away.Spec.SchedulingGates); n > 1 {
		more = fmt.Sprintf(" and %d more", n-1)
	}
	return fmt.Sprintf("its owner's policy or queue holds the pod by scheduling gate %s%s, and starts it by removing that", gate, more)
}

// ShorterGrace is the text if the provider ends the pod sooner than home would.
func ShorterGrace(home, away *corev1.Pod) string {
	if away == nil {
		return ""
	}
	own, theirs := ptr.Deref(home.Spec.TerminationGracePeriodSeconds, 30), ptr.Deref(away.Spec.TerminationGracePeriodSeconds, 30)
	if theirs >= own {
		return ""
	}
	return fmt.Sprintf("ends it %d s after its deletion, not %d s", theirs, own)
}

// replaced reports whether the wrapper replaces a pod that ended. One that is to be restarted ends only because it was
// evicted, lost or the like.
func replaced(p *corev1.Pod, policy corev1.RestartPolicy, finished corev1.PodPhase) bool {
	switch policy {
	case corev1.RestartPolicyAlways:
		return Terminal(p.Status.Phase)
	case corev1.RestartPolicyOnFailure:
		return p.Status.Phase == corev1.PodFailed && finished == ""
	}
	return false
}

// withoutPod is the status while the wrapper has no pod.
func withoutPod(home *corev1.Pod, st *corev1.PodStatus, away Away, view View) {
	if Terminal(away.Finished) {
		known := WithEnd(home, away.Last)
		if away.Expired {
			known.Status.Reason, known.Status.Message = ReasonDeadline, MessageDeadline
		}
		for _, list := range [][]corev1.ContainerStatus{known.Status.InitContainerStatuses, known.Status.ContainerStatuses} {
			if c := StatusOf(list, away.Failure); c != nil && c.State.Terminated == nil {
				c.State = ended(c, away.Code, "Error", "")
			}
		}
		*st = Ended(known, away.Finished)
		if st.Reason == ReasonGone && away.Trouble != "" {
			st.Message = fmt.Sprintf("on %s: %s", view.Node, view.Words.Of(away.Trouble))
		}
		return
	}
	st.Phase = Forward(st.Phase, corev1.PodPending)
	st.PodIP, st.PodIPs = "", nil
	st.Reason, st.Message = ReasonPending, fmt.Sprintf("waiting for %s to make the pod", view.Node)
	if away.Trouble != "" {
		st.Message = fmt.Sprintf("on %s: %s", view.Node, view.Words.Of(away.Trouble))
	}
	if st.StartTime == nil {
		return
	}
	// It ran and is being replaced: its containers wait, their counts stay.
	st.InitContainerStatuses = Containers(home.Status.InitContainerStatuses, nil, home.Spec.InitContainers, RestartPolicy(home), away.before.Containers)
	st.ContainerStatuses = Containers(home.Status.ContainerStatuses, nil, home.Spec.Containers, RestartPolicy(home), away.before.Containers)
	for i := range st.ContainerStatuses {
		if w := st.ContainerStatuses[i].State.Waiting; w != nil && away.before.Failures > 1 { // replaced later
			w.Reason, w.Message = "CrashLoopBackOff", st.Message
		}
	}
	st.EphemeralContainerStatuses = debuggers(home, nil)
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		setCondition(home, st, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: ReasonPending,
			LastTransitionTime: metav1.Now()})
	}
}

// Ended is the last status of a pod whose away pod is known to be gone. Without a phase it decides as a kubelet does:
// Succeeded if every container exited with 0. No exit is invented: where none is known the pod was disrupted.
func Ended(home *corev1.Pod, phase corev1.PodPhase) corev1.PodStatus {
	st := *home.Status.DeepCopy()
	if Terminal(st.Phase) {
		return st
	}
	st.ObservedGeneration = home.Generation
	st.EphemeralContainerStatuses = debuggers(home, nil) // their exits do not count
	clean, failed, lost := len(st.ContainerStatuses) > 0, false, false
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			switch {
			case c.State.Terminated != nil:
			case phase == corev1.PodSucceeded:
				c.State = ended(c, 0, "Completed", "")
			default:
				c.State = unseen(c)
			}
			c.Ready, c.Started = false, nil
			exit := c.State.Terminated
			clean = clean && exit != nil && exit.ExitCode == 0
			failed = failed || exit != nil && exit.ExitCode != 0
			lost = lost || c.State.Waiting != nil && c.State.Waiting.Reason == reasonUnknown
		}
	}
	if phase == "" {
		phase = corev1.PodFailed
		if clean {
			phase = corev1.PodSucceeded
		}
	}
	st.Phase = phase
	if phase == corev1.PodFailed && st.Reason == "" && !failed {
		st.Reason, st.Message = ReasonGone, "the pod is gone from the provider"
	}
	if cond := Condition(&st, corev1.DisruptionTarget); phase == corev1.PodFailed && lost && !failed && st.Reason != ReasonDeadline &&
		(cond == nil || cond.Status != corev1.ConditionTrue) {
		setCondition(home, &st, disrupted("the pod is gone from the provider, and how it ended there is not known"))
	}
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		setCondition(home, &st, corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: "Pod" + string(phase),
			LastTransitionTime: metav1.Now()})
	}
	return st
}

// Refused is the status of a pod that is not sent away.
func Refused(home *corev1.Pod, why string) corev1.PodStatus {
	st := *home.Status.DeepCopy()
	if Terminal(st.Phase) {
		return st
	}
	st.ObservedGeneration = home.Generation
	st.Phase, st.Reason, st.Message = Forward(st.Phase, corev1.PodPending), ReasonRefused, why
	setCondition(home, &st, corev1.PodCondition{Type: OffloadedCondition, Status: corev1.ConditionFalse,
		Reason: ReasonRefused, Message: why, LastTransitionTime: metav1.Now()})
	return st
}

func homeIPs(from *corev1.PodStatus, view View) (string, []corev1.PodIP) {
	var out []corev1.PodIP
	for _, ip := range from.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			if at, ok := view.Home(addr); ok {
				out = append(out, corev1.PodIP{IP: at.String()})
			}
		}
	}
	if len(out) == 0 {
		return "", nil
	}
	return out[0].IP, out
}

// Terminal reports whether the phase is final.
func Terminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

// Forward never takes a pod back from Running to Pending: a replaced away pod is, at home, a pod that restarts.
func Forward(now, next corev1.PodPhase) corev1.PodPhase {
	if next == "" || now == corev1.PodRunning && next == corev1.PodPending {
		next = now
	}
	if next == "" {
		next = corev1.PodPending
	}
	return next
}
