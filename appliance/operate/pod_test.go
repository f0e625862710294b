package operate

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodDetails(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	p := podOf("lab", "web", "home", corev1.PodRunning, false)
	p.UID = "now"
	p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "i:1"}}
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "new"})
	died := &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: metav1.NewTime(at)}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "first", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.NewTime(at)}}}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, LastTerminationState: corev1.ContainerState{Terminated: died}}}
	objects := []*corev1.Event{}
	for i := range maxEvents + 5 {
		e := &corev1.Event{ObjectMeta: object("lab", fmt.Sprint("e", i), nil), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "web", UID: "now"}, Reason: fmt.Sprint("R", i), Type: "Warning", LastTimestamp: metav1.NewTime(at.Add(time.Duration(i) * time.Second))}
		objects = append(objects, e)
	}
	objects[0].InvolvedObject.UID = "before"
	objects[1].LastTimestamp, objects[1].EventTime = metav1.Time{}, metav1.NewMicroTime(at.Add(time.Hour))
	c := clusterOf(nil, p)
	client, _ := c.Client()
	for _, e := range objects {
		if _, err := client.CoreV1().Events("lab").Create(t.Context(), e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	d, err := c.PodDetails(t.Context(), "lab", "web")
	if err != nil {
		t.Fatal(err)
	}
	want := []Container{
		{Name: "first", Image: "i:1", Kind: "init", State: "Completed", Detail: "exit code 0", Since: at},
		{Name: "c", State: "CrashLoopBackOff", Detail: "exit code 137", Restarts: 3, Since: at, Previous: true},
		{Name: "new", State: "Waiting"},
	}
	if !slices.Equal(d.Containers, want) || d.Place != "home" || d.Restarts != 3 {
		t.Errorf("%+v", d)
	}
	if len(d.Events) != maxEvents || d.MoreEvents != 4 || d.Events[0].Reason != "R1" || d.Events[1].Reason != fmt.Sprint("R", maxEvents+4) || !d.Events[0].Warning {
		t.Errorf("%d, %d more, %+v", len(d.Events), d.MoreEvents, d.Events[:2])
	}
	if _, err := c.PodDetails(t.Context(), "lab", "none"); err == nil || !strings.Contains(err.Error(), "rivulet pods -n lab") {
		t.Error(err)
	}
}

func TestContainerOfALogOrShell(t *testing.T) {
	p := podOf("lab", "web", "home", corev1.PodRunning, true)
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "side"})
	for name, want := range map[string]string{"": "c", "side": "side", "none": ""} {
		if got, err := containerOf(p, name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	p.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": "side"}
	if got, err := containerOf(p, ""); got != "side" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	log, err := clusterOf(nil, p).Log(t.Context(), LogRequest{Namespace: "lab", Pod: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(log); err != nil || len(text) == 0 || log.Close() != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := clusterOf(nil, p).Log(t.Context(), LogRequest{Namespace: "lab", Pod: "web", Container: "none"}); err == nil || !strings.Contains(err.Error(), "it has: [c side]") {
		t.Error(err)
	}
}
