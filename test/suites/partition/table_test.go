package partition

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"rivulet/test/harness/mainjob"
)

// fate is what becomes of a workload in a cut of two minutes. In one of ten seconds
// it is the same for all: nothing.
type fate string

const (
	// kept: before, in and after the cut the same pods in the same containers.
	kept fate = "kept"
	// finishes: it ends away in the cut; home learns it afterwards, and it ran once.
	finishes fate = "finishes"
	// movesHome: evicted, a replacement runs at home in the cut; after it the first is gone.
	movesHome fate = "movesHome"
	// returns: evicted, and started again only when the first is known to be gone.
	returns fate = "returns"
	// ends: Terminating as long as the cut lasts, and runs on; after it there is nothing.
	ends fate = "ends"
	// endsHere: gone at home at once, and runs on; after the cut there is nothing.
	endsHere fate = "endsHere"
	// grows: what was there is kept; what is more waits, and runs after the cut.
	grows fate = "grows"
	// shrinks: what is too much is Terminating and runs on; after the cut the rest is left, untouched.
	shrinks fate = "shrinks"
	// restarts: replaced by the provider; at home the same pod with one restart more.
	restarts fate = "restarts"
	// ticks: Jobs of the time of the cut run after it, each once.
	ticks fate = "ticks"
)

// Namespaces: pods of hasty are evicted from a node that is NotReady after ten seconds
// (tolerationSeconds, the workload's own configuration), all others after Kubernetes' five minutes.
const (
	steady = "steady"
	hasty  = "hasty"
	acted  = "acted"  // things are done at home in the cut
	theirs = "theirs" // things are done at the provider in the cut
	goes   = "goes"   // is deleted in the cut
)

var modes = map[string]string{steady: "remote", hasty: "any", acted: "remote", theirs: "remote", goes: "remote"}

// row is a line of the table.
type row struct {
	in, name string
	kind     string
	n        int // pods before the cut
	fate     fate
	after    int    // pods after the cut, where it is another number
	act      string // kubectl at home in the cut
	with     how
}

// how a workload differs from one that runs for ever.
type how struct {
	seconds int    // it ends by itself
	policy  string // of a Job that replaces pods
	late    bool   // made just before the long cut
}

var table = []row{
	{in: steady, name: "deployment", kind: "Deployment", n: 2, fate: kept},
	{in: steady, name: "statefulset", kind: "StatefulSet", n: 1, fate: kept},
	{in: steady, name: "daemonset", kind: "DaemonSet", n: 1, fate: kept},
	{in: steady, name: "job", kind: "Job", n: 1, fate: kept},
	{in: steady, name: "job-ends", kind: "Job", n: 1, fate: finishes, with: how{seconds: 50, late: true}},
	{in: steady, name: "cronjob", kind: "CronJob", n: 1, fate: kept},
	{in: steady, name: "cronjob-ticks", kind: "CronJob", fate: ticks, with: how{seconds: 1, late: true}},
	{in: steady, name: "pod", kind: "Pod", n: 1, fate: kept},

	{in: hasty, name: "deployment", kind: "Deployment", n: 1, fate: movesHome},
	{in: hasty, name: "statefulset", kind: "StatefulSet", n: 1, fate: returns},
	{in: hasty, name: "daemonset", kind: "DaemonSet", n: 1, fate: kept},
	{in: hasty, name: "job", kind: "Job", n: 1, fate: movesHome},
	{in: hasty, name: "job-failed", kind: "Job", n: 1, fate: returns, with: how{policy: "Failed"}},
	{in: hasty, name: "job-ends", kind: "Job", n: 1, fate: finishes, with: how{policy: "Failed", seconds: 60, late: true}},
	{in: hasty, name: "cronjob", kind: "CronJob", n: 1, fate: movesHome},
	{in: hasty, name: "pod", kind: "Pod", n: 1, fate: ends},

	{in: acted, name: "deployment", kind: "Deployment", n: 1, fate: ends, act: "delete deployment deployment --wait=false"},
	{in: acted, name: "statefulset", kind: "StatefulSet", n: 1, fate: ends, act: "delete statefulset statefulset --wait=false"},
	{in: acted, name: "daemonset", kind: "DaemonSet", n: 1, fate: ends, act: "delete daemonset daemonset --wait=false"},
	{in: acted, name: "job", kind: "Job", n: 1, fate: ends, act: "delete job job --wait=false"},
	{in: acted, name: "cronjob", kind: "CronJob", n: 1, fate: ends, act: "delete cronjob cronjob --wait=false"},
	{in: acted, name: "pod", kind: "Pod", n: 1, fate: ends, act: "delete pod pod --wait=false"},
	{in: acted, name: "pod-force", kind: "Pod", n: 1, fate: endsHere, act: "delete pod pod-force --force --grace-period=0"},
	{in: acted, name: "deployment-up", kind: "Deployment", n: 1, fate: grows, after: 2, act: "scale deployment deployment-up --replicas=2"},
	{in: acted, name: "deployment-down", kind: "Deployment", n: 2, fate: shrinks, after: 1, act: "scale deployment deployment-down --replicas=1"},
	{in: acted, name: "statefulset-up", kind: "StatefulSet", n: 1, fate: grows, after: 2, act: "scale statefulset statefulset-up --replicas=2"},
	{in: acted, name: "statefulset-down", kind: "StatefulSet", n: 2, fate: shrinks, after: 1, act: "scale statefulset statefulset-down --replicas=1"},

	{in: theirs, name: "deployment", kind: "Deployment", n: 1, fate: restarts},
	{in: theirs, name: "statefulset", kind: "StatefulSet", n: 1, fate: restarts},
	{in: theirs, name: "pod", kind: "Pod", n: 1, fate: restarts},

	{in: goes, name: "deployment", kind: "Deployment", n: 1, fate: ends, act: "delete namespace goes --wait=false"},
}

func (r row) String() string { return r.in + "/" + r.name }

type object = map[string]any

// manifest is what home is given, with the name that its pods have in label app.
func (r row) manifest() string {
	labels := object{"app": r.name}
	seconds := "100000"
	if r.with.seconds > 0 {
		seconds = fmt.Sprint(r.with.seconds)
	}
	spec := object{"terminationGracePeriodSeconds": 1, "containers": []object{{"name": "c", "image": mainjob.Image, "command": []string{"/bin/sleep", seconds}}}}
	if r.in == hasty {
		var gone []object
		for _, taint := range []string{"not-ready", "unreachable"} {
			gone = append(gone, object{"key": "node.kubernetes.io/" + taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10})
		}
		spec["tolerations"] = gone
		spec["affinity"] = object{"nodeAffinity": object{"preferredDuringSchedulingIgnoredDuringExecution": []object{{"weight": 100,
			"preference": object{"matchExpressions": []object{{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{"b"}}}}}}}}
	}
	template := object{"metadata": object{"labels": labels}, "spec": spec}
	job := object{"template": template}
	if r.with.policy != "" {
		job["podReplacementPolicy"] = r.with.policy
	}
	o := object{"apiVersion": "apps/v1", "kind": r.kind, "metadata": object{"name": r.name, "namespace": r.in, "labels": labels}}
	switch r.kind {
	case "Deployment", "StatefulSet":
		o["spec"] = object{"replicas": r.n, "selector": object{"matchLabels": labels}, "template": template}
	case "DaemonSet":
		// Only who says so by name has a DaemonSet's pods on a virtual node.
		spec["tolerations"] = []object{{"key": "rivulet.dev/virtual", "operator": "Exists"}}
		spec["nodeSelector"] = object{"kubernetes.io/hostname": "b"}
		delete(spec, "affinity")
		o["spec"] = object{"selector": object{"matchLabels": labels}, "template": template}
	case "Job":
		spec["restartPolicy"] = "Never"
		o["apiVersion"], o["spec"] = "batch/v1", job
	case "CronJob":
		spec["restartPolicy"] = "Never"
		cron := object{"schedule": "0 0 1 1 *", "jobTemplate": object{"spec": job}}
		if r.fate == ticks {
			cron["schedule"], cron["successfulJobsHistoryLimit"] = "* * * * *", 20
		}
		o["apiVersion"], o["spec"] = "batch/v1", cron
	case "Pod":
		o["apiVersion"], o["spec"] = "v1", spec
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// pods of one row on both sides; was is home's before the cut.
type scene struct {
	cut             bool // the link is cut, for long
	was, home, away []corev1.Pod
	runs            []run
}

// in is what has to be true while the cut lasts, once it has had its effect.
func (r row) during(s scene) error {
	switch r.fate {
	case kept, restarts:
		s.cut = true
		return s.untouched(len(s.was))
	case finishes:
		if len(s.home) != 1 || s.home[0].UID != s.was[0].UID || s.home[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("what was seen last does not stand: %s", s)
		}
		if evicted := s.home[0].DeletionTimestamp != nil; evicted != (r.in == hasty) {
			return fmt.Errorf("evicted: %v", evicted)
		}
	case movesHome:
		if old, fresh := s.split(); len(old) != 1 || old[0].DeletionTimestamp == nil || len(fresh) != 1 || fresh[0].Spec.NodeName != "a" || !running(&fresh[0]) {
			return fmt.Errorf("no replacement at home beside the one that is Terminating: %s", s)
		}
	case returns, ends:
		if len(s.home) != len(s.was) || s.home[0].UID != s.was[0].UID || s.home[0].DeletionTimestamp == nil {
			return fmt.Errorf("not just Terminating: %s", s)
		}
	case endsHere:
		if len(s.home) != 0 {
			return fmt.Errorf("still there: %s", s)
		}
	case grows:
		old, fresh := s.split()
		if r.kind == "StatefulSet" { // its next pod is made when those before it are ready
			if len(fresh) != 0 {
				return fmt.Errorf("one was made after a pod that is not ready: %s", s)
			}
		} else if len(fresh) != r.after-r.n || fresh[0].Status.Phase != corev1.PodPending || fresh[0].Spec.NodeName != "" {
			return fmt.Errorf("the new one does not wait: %s", s)
		}
		return scene{was: s.was, home: old, away: s.away, cut: true}.untouched(r.n)
	case shrinks:
		going := 0
		for _, p := range s.home {
			if p.DeletionTimestamp != nil {
				going++
			}
		}
		want := r.n - r.after
		if r.kind == "StatefulSet" { // none is taken away while another is not ready
			want = 0
		}
		if len(s.home) != r.n || going != want {
			return fmt.Errorf("%d are going: %s", going, s)
		}
	}
	if r.fate != ticks && r.fate != finishes && len(s.away) != len(s.was) {
		return fmt.Errorf("%d pods run away, not %d: %s", len(s.away), len(s.was), s)
	}
	return nil
}

// afterwards is what has to be true when the link is back.
func (r row) afterwards(s scene) error {
	switch r.fate {
	case kept:
		return s.untouched(len(s.was))
	case finishes:
		for _, p := range s.home { // after an eviction there is none
			if p.UID != s.was[0].UID || p.Status.Phase != corev1.PodSucceeded {
				return fmt.Errorf("not the same, Succeeded: %s", s)
			}
		}
		if len(s.runs) != 1 || r.in == steady && len(s.home) != 1 {
			return fmt.Errorf("ran %d times: %v; %s", len(s.runs), s.runs, s)
		}
	case movesHome:
		if _, fresh := s.split(); len(s.home) != 1 || len(fresh) != 1 || fresh[0].Spec.NodeName != "a" || !running(&fresh[0]) || len(s.away) != 0 || len(s.runs) != 2 {
			return fmt.Errorf("not just the replacement at home: %s, ran %v", s, s.runs)
		}
	case returns:
		if _, fresh := s.split(); len(s.home) != 1 || len(fresh) != 1 || !running(&fresh[0]) || len(s.runs) != 2 {
			return fmt.Errorf("not one new pod: %s, ran %v", s, s.runs)
		}
		return twice(s.runs)
	case ends, endsHere:
		if len(s.home)+len(s.away) != 0 || len(s.runs) != 1 {
			return fmt.Errorf("something is left: %s, ran %v", s, s.runs)
		}
	case grows:
		old, fresh := s.split()
		if len(fresh) != r.after-r.n || !running(&fresh[0]) || len(s.away) != r.after {
			return fmt.Errorf("not %d more: %s", r.after-r.n, s)
		}
		return scene{was: s.was, home: old, away: s.away}.untouched(r.n)
	case shrinks:
		if len(s.away) != r.after || len(s.runs) != r.n {
			return fmt.Errorf("not %d left: %s, ran %v", r.after, s, s.runs)
		}
		return s.untouched(r.after)
	case restarts:
		if len(s.home) != 1 || s.home[0].UID != s.was[0].UID || !running(&s.home[0]) || restartsOf(&s.home[0]) != 1 || len(s.away) != 1 {
			return fmt.Errorf("not the same pod with one restart: %s", s)
		}
		if len(s.runs) != 2 { // of a Deployment the second may begin while the first ends
			return fmt.Errorf("ran %d times: %v", len(s.runs), s.runs)
		}
	case ticks:
		for _, p := range s.home {
			if p.Status.Phase != corev1.PodSucceeded {
				return fmt.Errorf("%s is %s", p.Name, p.Status.Phase)
			}
		}
		if len(s.home) == 0 || len(s.runs) != len(s.home) {
			return fmt.Errorf("%d Jobs ran %d times", len(s.home), len(s.runs))
		}
	}
	return nil
}

// split tells home's pods of before the cut from later ones.
func (s scene) split() (old, fresh []corev1.Pod) {
	for _, p := range s.home {
		if slices.ContainsFunc(s.was, func(w corev1.Pod) bool { return w.UID == p.UID }) {
			old = append(old, p)
		} else {
			fresh = append(fresh, p)
		}
	}
	return old, fresh
}

// untouched is an error unless n pods of before are there, as they were, and no others. In a
// long cut they are not ready: Services leave them out.
func (s scene) untouched(n int) error {
	if len(s.home) != n {
		return fmt.Errorf("%d pods at home, not %d: %s", len(s.home), n, s)
	}
	for _, p := range s.home {
		i := slices.IndexFunc(s.was, func(w corev1.Pod) bool { return w.UID == p.UID })
		if i < 0 {
			return fmt.Errorf("%s is another pod: %s", p.Name, s)
		}
		if w := &s.was[i]; p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || mainjob.Ready(&p) == s.cut || containerOf(&p) != containerOf(w) || restartsOf(&p) != restartsOf(w) {
			return fmt.Errorf("%s is not as it was (%s, %d restarts): %s", p.Name, containerOf(w), restartsOf(w), s)
		}
	}
	return nil
}

func (s scene) String() string {
	var b strings.Builder
	for _, side := range []struct {
		name string
		pods []corev1.Pod
	}{{"home", s.home}, {"away", s.away}} {
		for _, p := range side.pods {
			fmt.Fprintf(&b, "[%s: %s on %q %s %s ready=%v deleted=%v restarts=%d %s]", side.name, p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason,
				mainjob.Ready(&p), p.DeletionTimestamp != nil, restartsOf(&p), containerOf(&p))
		}
	}
	return b.String()
}

func containerOf(p *corev1.Pod) string {
	if len(p.Status.ContainerStatuses) != 1 {
		return ""
	}
	return p.Status.ContainerStatuses[0].ContainerID
}

func restartsOf(p *corev1.Pod) int32 {
	if len(p.Status.ContainerStatuses) != 1 {
		return 0
	}
	return p.Status.ContainerStatuses[0].RestartCount
}

// all joins what is missing of the rows.
func all(rows []row, f func(row) error) error {
	var errs []error
	for _, r := range rows {
		if err := f(r); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", r, r.fate, err))
		}
	}
	return errors.Join(errs...)
}
