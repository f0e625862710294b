package pods

import (
	"context"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const (
	// unsettled is when a control plane with incomplete work is due again: a Job without a pod, which waits for its
	// back-off.
	unsettled = time.Minute
	// unplacedAgain is when it is due for pods without a node or a machine.
	unplacedAgain = 10 * time.Minute
	// unreadyFor is how long it looks after a pod that is not ready: its Services lead to it once it is.
	unreadyFor = time.Hour
	// extended is the default lifetime of pods' tokens, seconds, which API servers extend to a year
	// (k8s.io/kubernetes/pkg/serviceaccount, WarnOnlyBoundTokenExpiration).
	extended = 3607
)

// due returns when a control plane that ends now has to run again for its own work; the zero time is never.
func due(ctx context.Context, client kubernetes.Interface) (time.Time, error) {
	crons, err := client.BatchV1().CronJobs("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return time.Time{}, err
	}
	jobs, err := client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return time.Time{}, err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return time.Time{}, err
	}
	return next(crons.Items, jobs.Items, pods.Items, time.Now()), nil
}

// next returns the first time at which a controller has work. It has no side effects.
func next(crons []batchv1.CronJob, jobs []batchv1.Job, pods []corev1.Pod, now time.Time) (first time.Time) {
	at := func(t time.Time) {
		if t.Before(now) {
			t = now
		}
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for i := range crons {
		c := &crons[i]
		text := c.Spec.Schedule
		if c.Spec.TimeZone != nil {
			text = "TZ=" + *c.Spec.TimeZone + " " + text
		}
		if s, err := cron.ParseStandard(text); err == nil && !ptr.Deref(c.Spec.Suspend, false) && c.DeletionTimestamp == nil {
			at(s.Next(now))
		}
	}
	for i := range jobs {
		j := &jobs[i]
		var ended *metav1.Time
		for _, c := range j.Status.Conditions {
			if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
				ended = &c.LastTransitionTime
			}
		}
		switch {
		case ended != nil && j.Spec.TTLSecondsAfterFinished != nil:
			at(ended.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second))
		case ended != nil || ptr.Deref(j.Spec.Suspend, false):
		case j.Status.Active == 0:
			at(now.Add(unsettled))
		case j.Spec.ActiveDeadlineSeconds != nil && j.Status.StartTime != nil:
			at(j.Status.StartTime.Add(time.Duration(*j.Spec.ActiveDeadlineSeconds) * time.Second))
		}
	}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		switch since, unready := notReady(p); {
		case p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) > 0:
		case p.Status.StartTime == nil: // it waits for room
			at(now.Add(unplacedAgain))
		case unready && now.Sub(since) < unreadyFor: // after 1, 2, 4 … minutes
			at(now.Add(max(unsettled, now.Sub(since))))
		}
		if s := p.Spec.ActiveDeadlineSeconds; s != nil && p.Status.StartTime != nil {
			at(p.Status.StartTime.Add(time.Duration(*s) * time.Second))
		}
		for _, v := range p.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				// It is renewed after four fifths of its lifetime, at the latest.
				if t := source.ServiceAccountToken; t != nil && ptr.Deref(t.ExpirationSeconds, extended) != extended {
					at(now.Add(time.Duration(*t.ExpirationSeconds) * time.Second / 8))
				}
			}
		}
	}
	return first
}

// notReady reports whether a pod is not ready, and since when.
func notReady(p *corev1.Pod) (since time.Time, unready bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status != corev1.ConditionTrue
		}
	}
	return p.CreationTimestamp.Time, true
}
