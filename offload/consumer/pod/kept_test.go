package pod

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// keptWorld is a controller whose target keeps pods, with one pod of home.
func keptWorld(t *testing.T, away *fake.Clientset) {
	t.Helper()
	home := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "lab", UID: "u1"},
		Spec: corev1.PodSpec{NodeName: "b", Containers: []corev1.Container{{Name: "web", Image: "web"}}}})
	c := controller(home, Config{Target: keeps{place{away}}, NoHomeAPI: true})
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
