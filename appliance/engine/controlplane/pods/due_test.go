package pods

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestDue(t *testing.T) {
	now := time.Date(2026, 11, 26, 10, 30, 0, 0, time.UTC)
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(-d)} }
	cron := func(schedule string, zone *string, suspend bool) []batchv1.CronJob {
		return []batchv1.CronJob{{Spec: batchv1.CronJobSpec{Schedule: schedule, TimeZone: zone, Suspend: &suspend}}}
	}
	job := func(spec batchv1.JobSpec, status batchv1.JobStatus) []batchv1.Job {
		return []batchv1.Job{{Spec: spec, Status: status}}
	}
	ended := batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: *ago(time.Minute)}}}
	pod := func(spec corev1.PodSpec, phase corev1.PodPhase) []corev1.Pod {
		return []corev1.Pod{{Spec: spec, Status: corev1.PodStatus{Phase: phase, StartTime: ago(time.Minute),
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}}
	}
	unready := func(since time.Duration, started bool) []corev1.Pod {
		p := pod(corev1.PodSpec{NodeName: "host"}, corev1.PodRunning)
		p[0].Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: *ago(since)}
		if !started {
			p[0].Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		return p
	}
	waits := []corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodPending}}}
	token := func(seconds int64) corev1.PodSpec {
		return corev1.PodSpec{NodeName: "host", Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds}}}}}}}}
	}
	const never = -1
	for name, c := range map[string]struct {
		crons []batchv1.CronJob
		jobs  []batchv1.Job
		pods  []corev1.Pod
		want  time.Duration
	}{
		"nothing to do":                {want: never},
		"a schedule":                   {crons: cron("0 * * * *", nil, false), want: 30 * time.Minute},
		"a schedule in its time zone":  {crons: cron("0 12 * * *", ptr.To("Europe/Berlin"), false), want: 30 * time.Minute},
		"a schedule that is suspended": {crons: cron("0 * * * *", nil, true), want: never},
		"a schedule that is none":      {crons: cron("whenever", nil, false), want: never},
		"a Job that runs":              {jobs: job(batchv1.JobSpec{}, batchv1.JobStatus{Active: 1, StartTime: ago(time.Minute)}), want: never},
		"a Job with a deadline":        {jobs: job(batchv1.JobSpec{ActiveDeadlineSeconds: ptr.To[int64](100)}, batchv1.JobStatus{Active: 1, StartTime: ago(time.Minute)}), want: 40 * time.Second},
		"a Job between two pods":       {jobs: job(batchv1.JobSpec{}, batchv1.JobStatus{Failed: 1, StartTime: ago(time.Minute)}), want: unsettled},
		"a Job that is suspended":      {jobs: job(batchv1.JobSpec{Suspend: ptr.To(true)}, batchv1.JobStatus{}), want: never},
		"a Job that ended":             {jobs: job(batchv1.JobSpec{}, ended), want: never},
		"a Job to be removed":          {jobs: job(batchv1.JobSpec{TTLSecondsAfterFinished: ptr.To[int32](300)}, ended), want: 4 * time.Minute},
		"a Job long to be removed":     {jobs: job(batchv1.JobSpec{TTLSecondsAfterFinished: ptr.To[int32](1)}, ended), want: 0},
		"a pod that runs":              {pods: pod(corev1.PodSpec{NodeName: "host"}, corev1.PodRunning), want: never},
		"a pod without a node":         {pods: waits, want: unplacedAgain},
		"a pod that waits for room":    {pods: unready(0, false), want: unplacedAgain},
		"a pod that is not ready yet":  {pods: unready(20*time.Second, true), want: unsettled},
		"one that long is not":         {pods: unready(8*time.Minute, true), want: 8 * time.Minute},
		"one that will not be":         {pods: unready(unreadyFor, true), want: never},
		"a pod with a deadline":        {pods: pod(corev1.PodSpec{NodeName: "host", ActiveDeadlineSeconds: ptr.To[int64](90)}, corev1.PodRunning), want: 30 * time.Second},
		"a pod that ended":             {pods: pod(corev1.PodSpec{ActiveDeadlineSeconds: ptr.To[int64](90)}, corev1.PodFailed), want: never},
		"a token that all have":        {pods: pod(token(extended), corev1.PodRunning), want: never},
		"a token of its own":           {pods: pod(token(1600), corev1.PodRunning), want: 200 * time.Second},
		"the first of several":         {crons: cron("0 * * * *", nil, false), pods: waits, want: unplacedAgain},
	} {
		got := next(c.crons, c.jobs, c.pods, now)
		if c.want == never && !got.IsZero() || c.want != never && got.Sub(now) != c.want {
			t.Errorf("%s: %s, want %s", name, got.Sub(now), c.want)
		}
	}
}
