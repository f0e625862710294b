package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/diagnose/why"
	"rivulet/appliance/operate"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
	"rivulet/offload/provider/tenancy"
)

func TestPodsByPlace(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	p := func(ns, name, node string, labels map[string]string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(now.Add(-5 * time.Minute))},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Image: "web:1"}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Ready: true, RestartCount: 2}}}}
	}
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "me"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "lab-2-arm64", Labels: map[string]string{policy.VirtualNodeLabel: "id", policy.TargetLabel: "lab-2"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "lab-3", Labels: map[string]string{policy.VirtualNodeLabel: "id3"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}}}}
	ended := func(p corev1.Pod, phase corev1.PodPhase, reason string) corev1.Pod {
		p.Status = corev1.PodStatus{Phase: phase, Reason: reason}
		return p
	}
	student := p("default-db-anna-x", "web-0-abc", "me", map[string]string{policy.OriginLabel: "anna"})
	student.Annotations = map[string]string{policy.HomeNamespaceAnnotation: "default", policy.HomePodAnnotation: "web-0"}
	rows := operate.PodsByPlace([]corev1.Pod{
		p("lab", "away", "lab-2-arm64", nil), p("twin", "theirs", "me", map[string]string{policy.OriginLabel: "id"}),
		p("lab", "here", "me", nil), p("lab", "none", "", nil), p("kube-system", "dns", "me", nil), p("lab", "lost", "lab-3", nil),
		ended(p("lab", "squeezed", "lab-3", nil), corev1.PodFailed, "Evicted"), ended(p("lab", "once", "me", nil), corev1.PodSucceeded, ""),
		ended(p("lab", "refused", "lab-2-arm64", nil), corev1.PodPending, translate.ReasonRefused),
		student,
	}, nodes, why.VClusters{"anna": {Consumer: tenancy.Consumer{ID: "anna", Name: "db-anna"}, VCluster: true, Course: "default/db"}})
	var out bytes.Buffer
	if err := printPods(&out, rows, false, now); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PLACE    ON     NAMESPACE                 POD      READY  STATE           RESTARTS  AGE",
		"waiting  -      lab                       none     1/1    Running         2         5m",
		"waiting  lab-2  lab                       refused  0/1    OffloadRefused  0         5m",
		"home     me     lab                       here     1/1    Running         2         5m",
		"away     lab-2  lab                       away     1/1    Running         2         5m",
		"away     lab-3  lab                       lost     1/1    Unknown         2         5m",
		"tenant   me     twin                      theirs   1/1    Running         2         5m",
		"tenant   me     anna (course db) default  web-0    1/1    Running         2         5m",
		"2 more have ended, see: rivulet pods -o wide",
	}
	if got := strings.Split(strings.TrimSpace(out.String()), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", out.String(), strings.Join(want, "\n"))
	}
	out.Reset()
	if err := printPods(&out, rows, true, now); err != nil || !strings.Contains(out.String(), "dns") || !strings.Contains(out.String(), "Evicted") || !strings.Contains(out.String(), "web:1") || !strings.Contains(out.String(), "web-0-abc") || !strings.Contains(out.String(), "db-anna/default/web-0") {
		t.Errorf("wide: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := printPods(&out, nil, false, now); err != nil || !strings.Contains(out.String(), "rivulet kubectl create deployment") {
		t.Errorf("none: %v %s", err, out.String())
	}
}
