package pod

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
)

func TestWhoseDeadlineHomeKeeps(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	for _, c := range []struct {
		what          string
		restarts      corev1.RestartPolicy
		deadline      *int64
		made, started *metav1.Time
		left          time.Duration
		ok            bool
	}{
		{"none", corev1.RestartPolicyAlways, nil, at(-time.Minute), at(-time.Minute), 0, false},
		{"not started", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-time.Hour), nil, 0, false},
		{"its kubelet's", corev1.RestartPolicyNever, ptr.To[int64](60), at(-time.Hour), at(-time.Hour), 0, false},
		{"its Job's", corev1.RestartPolicyOnFailure, ptr.To[int64](60), at(-time.Hour), at(-time.Hour), 0, false},
		{"to come", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-time.Minute), at(-20 * time.Second), 40 * time.Second, true},
		{"passed", "", ptr.To[int64](60), at(-time.Hour), at(-90 * time.Second), -30 * time.Second, true},
		{"a clock that is behind", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-20 * time.Second), at(-time.Hour), 40 * time.Second, true},
		{"a clock that is ahead", corev1.RestartPolicyAlways, ptr.To[int64](60), at(-20 * time.Second), at(time.Hour), time.Minute, true},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: *c.made},
			Spec: corev1.PodSpec{RestartPolicy: c.restarts, ActiveDeadlineSeconds: c.deadline}, Status: corev1.PodStatus{StartTime: c.started}}
		if left, ok := timeLeft(p, now); ok != c.ok || left != c.left {
			t.Errorf("%s: %s %v, want %s %v", c.what, left, ok, c.left, c.ok)
		}
	}
}

// A pod whose deadline has passed fails at home as it would there: with the reason of a
// kubelet, and with how its containers ended.
func TestAPodFailsAfterItsDeadline(t *testing.T) {
	ctx := t.Context()
	pod := web()
	pod.Spec.ActiveDeadlineSeconds, pod.Spec.Volumes, pod.CreationTimestamp = ptr.To[int64](60), nil, metav1.NewTime(time.Now().Add(-time.Hour))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &pod.CreationTimestamp, ContainerStatuses: []corev1.ContainerStatus{
		{Name: "web", ContainerID: "c1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	want, err := Wrap(pod, "home-id", "")
	if err != nil {
		t.Fatal(err)
	}
	if want.template().Spec.ActiveDeadlineSeconds != nil {
		t.Error("away, another would be made in its place whenever the deadline passes")
	}
	set := want.ReplicaSet
	set.Namespace, set.UID = "lab-a", "s1"
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x", Namespace: "lab-a", UID: "p1", Labels: set.Spec.Template.Labels, Annotations: set.Spec.Template.Annotations},
		Spec: set.Spec.Template.Spec, Status: *pod.Status.DeepCopy()}
	home, target := fake.NewClientset(pod), fake.NewClientset(set, running)
	recorder := record.NewFakeRecorder(10)
	c := New(Config{Home: home, Target: place{target}, Cluster: "home-id", HostIP: netip.MustParseAddr("10.0.0.1"), NoHomeAPI: true,
		Offloaded: func(string) bool { return true }, Up: func() bool { return true }, Recorder: recorder, Log: slog.New(slog.DiscardHandler)})
	w := &twin{home: "lab", name: "lab-a", client: target, stop: func() {},
		pods: newSeen(), sets: newSeen(), jobs: newSeen(), secrets: newSeen()}
	c.twins.all["lab"] = w
	atHome := newSeen()
	c.pods.nodes = map[string]cache.SharedIndexInformer{"b": atHome}
	look := func(sets, pods []any) *corev1.Pod {
		t.Helper()
		now, err := home.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		atHome.show(now)
		w.sets.(*seen).show(sets...)
		w.pods.(*seen).show(pods...)
		w.jobs.(*seen).show()
		w.secrets.(*seen).show()
		if err := c.reconcile(ctx, keyOf(pod)); err != nil {
			t.Log(err)
		}
		now, err = home.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	if now := look([]any{set}, []any{running}); now.Status.Phase != corev1.PodRunning {
		t.Errorf("%s, and it runs", now.Status.Phase)
	}
	if list, _ := target.AppsV1().ReplicaSets("lab-a").List(ctx, metav1.ListOptions{}); len(list.Items) != 0 {
		t.Fatal("what keeps it running is still there")
	}
	if e := <-recorder.Events; e != "Normal DeadlineExceeded "+messageDeadline {
		t.Error(e)
	}
	if now := look(nil, []any{running}); now.Status.Phase != corev1.PodRunning {
		t.Errorf("%s, and it runs", now.Status.Phase)
	}
	ended := running.DeepCopy()
	ended.DeletionTimestamp, ended.Status.Phase = ptr.To(metav1.Now()), corev1.PodFailed
	ended.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error"}}
	look(nil, []any{ended})
	if now := look(nil, nil); now.Status.Phase == corev1.PodFailed {
		t.Error("failed while the provider's API has a pod of it")
	}
	if err := target.CoreV1().Pods("lab-a").Delete(ctx, running.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	st := look(nil, nil).Status
	if st.Phase != corev1.PodFailed || st.Reason != "DeadlineExceeded" || st.Message != messageDeadline {
		t.Errorf("%s %s %s", st.Phase, st.Reason, st.Message)
	}
	if end := st.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 143 {
		t.Errorf("%+v", st.ContainerStatuses)
	}
}
