package pod

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/offload/replacement"
	"rivulet/test/harness/await"
)

// A record is the pod that the ReplicaSet would have made, and says whether two may run.
func TestRecord(t *testing.T) {
	for kind, want := range map[string]replacement.Mode{"ReplicaSet": replacement.AtOnce, "StatefulSet": replacement.AfterEnd, "DaemonSet": replacement.AfterEnd, "": replacement.AfterEnd} {
		home := web()
		home.OwnerReferences = nil
		if kind != "" {
			home.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: ptr.To(true)}}
		}
		w, err := Wrap(home, "home-id", "")
		if err != nil {
			t.Fatal(err)
		}
		p := asRecord(w, home).Pod
		if p.Name != w.ReplicaSet.Name || !replacement.Kept(p) || p.Labels[policy.KeptLabel] != string(want) {
			t.Errorf("%s: %s %v %v", kind, p.Name, p.Labels, p.Finalizers)
		}
		template := w.ReplicaSet.Spec.Template
		labels, annotations := replacement.Transferred(p)
		for name, m := range map[string][2]map[string]string{"labels": {labels, template.Labels}, "annotations": {annotations, template.Annotations}} {
			got := maps.Clone(m[0])
			for key, value := range m[1] {
				if got[key] != value {
					t.Errorf("%s of home: %s is %q, want %q", name, key, got[key], value)
				}
				delete(got, key)
			}
			if len(got) != 1 { // what makes it a record
				t.Errorf("%s that are not home's: %v", name, got)
			}
		}
		if len(p.Spec.Containers) != len(template.Spec.Containers) || p.Spec.Hostname != template.Spec.Hostname {
			t.Errorf("%+v", p.Spec)
		}
	}
}

// keptWorld is a controller whose target keeps pods, with one pod of home.
func keptWorld(t *testing.T, away *fake.Clientset) {
	t.Helper()
	home := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1"},
		Spec: corev1.PodSpec{NodeName: "b", Containers: []corev1.Container{{Name: "web", Image: "web"}}}})
	c := New(Config{Home: home, Target: place{away}, Nodes: []string{"b"}, Cluster: "aid", HostIP: netip.MustParseAddr("10.0.0.1"), NoHomeAPI: true,
		Offloaded: func(string) bool { return true }, Up: func() bool { return true }, Keeps: func() bool { return true }, Departed: func(string) {},
		Recorder: record.NewFakeRecorder(100), Log: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
}

// A provider that refuses the pod gets a ReplicaSet, which waits there for room.
func TestRefusedRecordWaitsAsAReplicaSet(t *testing.T) {
	away := fake.NewClientset()
	away.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "web", errors.New("exceeded quota"))
	})
	keptWorld(t, away)
	await.True(t, time.Minute, "a ReplicaSet waits", func() bool {
		set, err := away.AppsV1().ReplicaSets("lab-a").Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && set.Labels[policy.HomeUIDLabel] == "u1" && set.Spec.Template.Labels[policy.KeptLabel] == ""
	})
}
