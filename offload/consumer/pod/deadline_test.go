package pod

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/translate/translatetest"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/policy"
)

// A pod whose deadline has passed fails at home as it would there: with the reason of a
// kubelet, and with how its containers ended.
func TestAPodFailsAfterItsDeadline(t *testing.T) {
	ctx := t.Context()
	pod := translatetest.Web()
	pod.Spec.ActiveDeadlineSeconds, pod.Spec.Volumes, pod.CreationTimestamp = ptr.To[int64](60), nil, metav1.NewTime(time.Now().Add(-time.Hour))
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &pod.CreationTimestamp, ContainerStatuses: []corev1.ContainerStatus{
		{Name: "web", ContainerID: "c1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	want, err := translate.Wrap(pod, "home-id", "")
	if err != nil {
		t.Fatal(err)
	}
	if want.Template().Spec.ActiveDeadlineSeconds != nil {
		t.Error("away, another would be made in its place whenever the deadline passes")
	}
	set := want.ReplicaSet
	set.Namespace, set.UID = "lab-a", "s1"
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-x", Namespace: "lab-a", UID: "p1", Labels: set.Spec.Template.Labels, Annotations: set.Spec.Template.Annotations},
		Spec: set.Spec.Template.Spec, Status: *pod.Status.DeepCopy()}
	home, target := fake.NewClientset(pod), fake.NewClientset(set, running)
	recorder := record.NewFakeRecorder(10)
	c := New(Config{Home: Home{Client: home, ID: "home-id", HostIP: netip.MustParseAddr("10.0.0.1"), Recorder: recorder}, Target: place{target}, NoHomeAPI: true,
		Namespaces: &mode{policy.Remote}, Nodes: reachable{}, Log: slog.New(slog.DiscardHandler)})
	w := newShown(target)
	c.twins.Ensure("lab", "lab-a", func() *twin.Twin { return w.twin })
	atHome := newSeenAtHome()
	c.pods.all, c.pods.nodes = atHome, map[string]bool{"b": true}
	look := func(sets, pods []any) *corev1.Pod {
		t.Helper()
		now, err := home.CoreV1().Pods("lab").Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		atHome.show(now)
		w.sets.show(sets...)
		w.pods.show(pods...)
		w.jobs.show()
		w.secrets.show()
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
	if e := <-recorder.Events; e != "Normal DeadlineExceeded "+translate.MessageDeadline {
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
	if st.Phase != corev1.PodFailed || st.Reason != "DeadlineExceeded" || st.Message != translate.MessageDeadline {
		t.Errorf("%s %s %s", st.Phase, st.Reason, st.Message)
	}
	if end := st.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 143 {
		t.Errorf("%+v", st.ContainerStatuses)
	}
}
