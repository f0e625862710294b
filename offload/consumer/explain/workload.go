package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// workload is an object that makes pods, of any kind.
type workload struct {
	kind        string
	meta        metav1.ObjectMeta
	want, ready int32
	paused      bool // changes are not rolled out
	suspended   bool
	over, job   bool // finished, and a Job: it makes no more pods, and its pods end
	conditions  []known
}

// known is a condition.
type known struct {
	kind, reason, message string
	holds                 bool
}

func conditionsOf[C any](list []C, as func(C) known) (out []known) {
	for _, c := range list {
		out = append(out, as(c))
	}
	return out
}

func (w *workload) condition(kind string) *known {
	i := slices.IndexFunc(w.conditions, func(c known) bool { return c.kind == kind })
	if i < 0 {
		return nil
	}
	return &w.conditions[i]
}

// wanted is a number of replicas; unset is 1.
func wanted(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func job(o *batchv1.Job) workload {
	w := workload{kind: "Job", meta: o.ObjectMeta, want: wanted(o.Spec.Parallelism), ready: o.Status.Active, suspended: o.Spec.Suspend != nil && *o.Spec.Suspend, job: true,
		conditions: conditionsOf(o.Status.Conditions, func(c batchv1.JobCondition) known {
			return known{string(c.Type), c.Reason, c.Message, c.Status == corev1.ConditionTrue}
		})}
	for _, kind := range []string{"Complete", "Failed"} {
		c := w.condition(kind)
		w.over = w.over || c != nil && c.holds
	}
	return w
}

func (f Facts) workload(w workload) subject {
	uids := f.makers(&w.meta)
	pods := f.podsOf(w.meta.Namespace, func(p *corev1.Pod) bool {
		c := metav1.GetControllerOf(p)
		return c != nil && slices.Contains(uids, c.UID)
	})
	s := subject{kind: w.kind, meta: w.meta, state: fmt.Sprintf("%d of %d pods ready", w.ready, w.want), fine: fmt.Sprintf("%d of %d pods are ready", w.ready, w.want)}
	if w.job {
		s.state, s.fine = fmt.Sprintf("%d pods active", w.ready), "its pods run"
		if c := w.condition("Complete"); c != nil && c.holds {
			s.state, s.fine = "Complete", "it ran to its end, without an error"
			return s
		}
	}
	bad := f.worst(pods)
	s.reasons = slices.Concat(w.stopped(), f.unmade(&w, uids, pods), w.failed(), bad, w.stuck(len(bad) > 0, len(pods)))
	return s
}

// makers are the UIDs of everything that makes pods for an object: itself, and the objects that it controls.
func (f Facts) makers(m *metav1.ObjectMeta) []types.UID {
	out := []types.UID{m.UID}
	for i := range f.ReplicaSets {
		if metav1.IsControlledBy(&f.ReplicaSets[i], m) {
			out = append(out, f.ReplicaSets[i].UID)
		}
	}
	return out
}

func (f Facts) podsOf(namespace string, is func(*corev1.Pod) bool) (out []corev1.Pod) {
	for i := range f.Pods {
		if p := &f.Pods[i]; p.Namespace == namespace && is(p) {
			out = append(out, *p)
		}
	}
	return out
}

// stopped explains a workload that makes no pods, or no new ones.
func (w *workload) stopped() []Reason {
	of := " -n " + w.meta.Namespace + " " + strings.ToLower(w.kind) + "/" + w.meta.Name
	switch {
	case w.suspended:
		return []Reason{{Stopped, "it is suspended and makes no pods", "rivulet kubectl patch" + of + ` -p '{"spec":{"suspend":false}}'`}}
	case w.paused:
		return []Reason{{Stopped, "it is paused: its last change is not rolled out", "rivulet kubectl rollout resume" + of}}
	case w.kind == "DaemonSet" && w.want == 0:
		return []Reason{{Selector, "no node is one that its nodeSelector or affinity asks for", "label one: rivulet kubectl label node NODE KEY=VALUE; or: correct that in its manifest"}}
	case w.want == 0 && !w.over:
		return []Reason{{Stopped, "it has 0 replicas, and so no pods", "rivulet kubectl scale" + of + " --replicas=1"}}
	}
	return nil
}

// unmade explains a workload whose pods the API server refuses.
func (f Facts) unmade(w *workload, uids []types.UID, pods []corev1.Pod) []Reason {
	there := int32(0)
	for i := range pods {
		if !over(&pods[i]) {
			there++
		}
	}
	if there >= w.want || w.over || w.suspended {
		return nil
	}
	say := ""
	if c := w.condition("ReplicaFailure"); c != nil && c.holds {
		say = short(c.message)
	}
	if say = cmp.Or(say, f.eventOf(uids, "FailedCreate")); say == "" {
		return nil
	}
	say = strings.TrimPrefix(say, "Error creating: ")
	if cure := raise(say, w.meta.Namespace, int64(w.want-there)); cure != "" {
		return []Reason{{Quota, "its pods cannot be made: " + say, cure}}
	}
	if m := noAccount.FindStringSubmatch(say); m != nil {
		return []Reason{{Unmade, "its pods cannot be made: " + say, "rivulet kubectl create serviceaccount -n " + w.meta.Namespace + " " + m[1]}}
	}
	return []Reason{{Unmade, "its pods cannot be made: " + say, "change what it names in " + w.kind + " " + w.meta.Namespace + "/" + w.meta.Name}}
}

// The matches are put into a command: they are names and amounts, without characters that a shell interprets.
var (
	overQuota = regexp.MustCompile(`exceeded quota: ([a-z0-9.-]+), requested: ([\w./=,-]+), used: ([\w./=,-]+), limited: ([\w./=,-]+)`)
	noAccount = regexp.MustCompile(`error looking up service account [^/ ]+/([a-z0-9.-]+): `)
)

// raise is the cure of a quota that the additional pods exceed; "" without one.
func raise(say, namespace string, more int64) string {
	m := overQuota.FindStringSubmatch(say)
	if m == nil {
		return ""
	}
	requested, used, hard := quantities(m[2]), quantities(m[3]), map[string]string{}
	for name := range quantities(m[4]) {
		ask, sum := requested[name], used[name]
		for range min(more, 1000) {
			sum.Add(ask)
		}
		hard[name] = sum.String()
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"hard": hard}})
	if err != nil {
		return ""
	}
	return fmt.Sprintf("raise it: rivulet kubectl patch quota -n %s %s -p '%s'; or: request less, or delete pods that are not needed", namespace, m[1], patch)
}

// quantities parses cpu=1,pods=2.
func quantities(text string) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		if q, err := resource.ParseQuantity(value); err == nil {
			out[name] = q
		}
	}
	return out
}

// failed explains a Job that was given up.
func (w *workload) failed() []Reason {
	for _, kind := range []string{"Failed", "FailureTarget"} {
		c := w.condition(kind)
		if !w.job || c == nil || !c.holds {
			continue
		}
		cure := "see why, mend it, and make the Job again: rivulet kubectl logs -n " + w.meta.Namespace + " job/" + w.meta.Name
		if c.reason == "DeadlineExceeded" {
			cure = "raise spec.activeDeadlineSeconds, or have the program do less, and make the Job again"
		}
		return []Reason{{Failed, "it was given up: " + strings.TrimSpace(c.reason+": "+short(c.message)), cure}}
	}
	return nil
}

// stuck explains a workload without any other finding.
func (w *workload) stuck(known bool, pods int) []Reason {
	if known || w.over || w.suspended {
		return nil
	}
	if c := w.condition("Progressing"); c != nil && c.reason == "ProgressDeadlineExceeded" {
		return []Reason{{Stuck, "it makes no progress: " + short(c.message), "rivulet kubectl rollout status -n " + w.meta.Namespace + " " + strings.ToLower(w.kind) + "/" + w.meta.Name + " --timeout=10s"}}
	}
	if pods == 0 && w.want > 0 {
		return []Reason{{Starting, "its pods have not been made yet", ""}}
	}
	return nil
}

// severity is the order of problems in worst: what stops all pods comes before what one pod waits for.
var severity = []string{Refused, Image, Platform, Configured, Crash, Claim, Pressure, Port, NoRoom, Selector, Link, Quota, Taint, TooLate, Class, Probe, Gated, NotScheduled, Ended, Deleting, Slow, Starting}

// worst is the problem of the worst of some pods, the first of equal ones.
func (f Facts) worst(pods []corev1.Pod) []Reason {
	type bad struct {
		name    string
		reasons []Reason
	}
	var all []bad
	for i := range pods {
		p := &pods[i]
		replaced := over(p) && slices.ContainsFunc(pods, func(o corev1.Pod) bool { return !over(&o) && Controller(&o) == Controller(p) && Controller(p) != "" })
		if p.Status.Phase == corev1.PodSucceeded || replaced {
			continue
		}
		if a := Explain(f.of(p)); a.Reasons[0].Code != Fine {
			all = append(all, bad{p.Name, a.Reasons})
		}
	}
	if len(all) == 0 {
		return nil
	}
	first := slices.MinFunc(all, func(x, y bad) int {
		return cmp.Or(slices.Index(severity, x.reasons[0].Code)-slices.Index(severity, y.reasons[0].Code), cmp.Compare(x.name, y.name))
	})
	out := slices.Clone(first.reasons)
	out[0].What = "pod " + first.name + ": " + out[0].What
	if len(all) > 1 {
		out[0].What = fmt.Sprintf("%d of %d pods: the worst is ", len(all), len(pods)) + out[0].What
	}
	return out
}

// cronJob explains whether a CronJob starts Jobs, and the state of the last of them.
func (f Facts) cronJob(o *batchv1.CronJob) subject {
	of := " -n " + o.Namespace + " cronjob/" + o.Name
	s := subject{kind: "CronJob", meta: o.ObjectMeta, state: fmt.Sprintf("%d Jobs active", len(o.Status.Active)), fine: "it starts a Job by its schedule " + o.Spec.Schedule}
	if o.Status.LastScheduleTime != nil {
		s.fine += ", the last at " + o.Status.LastScheduleTime.Local().Format(time.DateTime)
	}
	var last *batchv1.Job
	for i := range f.Jobs {
		if j := &f.Jobs[i]; metav1.IsControlledBy(j, o) && (last == nil || last.CreationTimestamp.Before(&j.CreationTimestamp)) {
			last = j
		}
	}
	if o.Spec.Suspend != nil && *o.Spec.Suspend {
		s.reasons = append(s.reasons, Reason{Stopped, "it is suspended and starts no Jobs", "rivulet kubectl patch" + of + ` -p '{"spec":{"suspend":false}}'`})
	}
	if say := f.eventOf([]types.UID{o.UID}, "UnparseableCronJobSchedule", "InvalidSchedule", "UnknownTimeZone", "TooManyMissedTimes", "FailedNeedsStart", "MissSchedule", "FailedCreate"); say != "" {
		s.reasons = append(s.reasons, Reason{Schedule, "a Job was not started: " + say, "start one by hand: rivulet kubectl create job -n " + o.Namespace + " " + o.Name + "-by-hand --from=cronjob/" + o.Name + "; or: correct its schedule or its startingDeadlineSeconds"})
	}
	if last == nil {
		return s
	}
	f.Object = last
	if a := f.object(); a.Reasons[0].Code != Fine {
		a.Reasons[0].What = "its last Job " + last.Name + ": " + a.Reasons[0].What
		if o.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent && len(o.Status.Active) > 0 {
			a.Reasons[0].What += "; while it is active no other is started (concurrencyPolicy: Forbid)"
		}
		s.reasons = append(s.reasons, a.Reasons...)
	}
	return s
}
