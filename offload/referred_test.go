package offload

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestOnlyWhatPodsReferTo: a provider gets a Secret before the first pod that refers to it, keeps it
// through a restart of home and a rollout, and loses it with the last such pod, also where that
// went while home did not look. It never gets another.
func TestOnlyWhatPodsReferTo(t *testing.T) {
	a, b := world(t)
	apiserver.StartKubelet(t, b.Server, "b-node")
	ctx := t.Context()
	a.offloadNamespace(t, "lab", "remote")
	a.ready(t, true)
	secrets := a.Client.CoreV1().Secrets("lab")
	for _, name := range []string{"old", "new", "other", "unused"} {
		_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"of": name}}, metav1.CreateOptions{})
		must(t, err)
	}
	given, err := b.Client.CoreV1().Secrets("").Watch(ctx, metav1.ListOptions{LabelSelector: "rivulet.dev/reflected"})
	must(t, err)
	defer given.Stop()
	twin := b.Client.CoreV1().Secrets(a.twin("lab"))
	there := func(name string) *corev1.Secret {
		s, err := twin.Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if err != nil {
			return nil
		}
		return s
	}
	is := func(name string, want bool) {
		t.Helper()
		await.True(t, time.Minute, fmt.Sprintf("%s is at the provider: %v", name, want), func() bool { return (there(name) != nil) == want })
	}

	d := web(2)
	d.Spec.Template.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "old"}}}}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "nowhere", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "nowhere"}}}}
	pods, err := b.Client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	must(t, err)
	defer pods.Stop()
	a.create(t, d)
	first := (<-pods.ResultChan()).Object.(*corev1.Pod)
	s := there("old")
	if s == nil || revision(t, s) > revision(t, first) {
		t.Fatalf("pod %s was made at the provider before its Secret: %v", first.Name, s)
	}
	run := func(what string) {
		t.Helper()
		await.Empty(t, time.Minute, what, func(ctx context.Context) string { return a.rolledOut(ctx, t) })
	}
	run("both pods run")

	a.stop()
	a.start()
	a.ready(t, true)
	_, err = secrets.Patch(ctx, "old", types.MergePatchType, []byte(`{"stringData":{"of":"edited"}}`), metav1.PatchOptions{})
	must(t, err)
	await.True(t, time.Minute, "an edit after a restart", func() bool {
		now := there("old")
		if now == nil || now.UID != s.UID {
			t.Fatalf("it was taken away from pods that use it: %v", now)
		}
		return string(now.Data["of"]) == "edited"
	})

	_, err = a.Client.AppsV1().Deployments("lab").Patch(ctx, "web", types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"`+d.Spec.Template.Spec.Containers[0].Name+`","envFrom":[{"secretRef":{"name":"new"}}]}]}}}}`), metav1.PatchOptions{})
	must(t, err)
	run("rolled out with another Secret")
	is("new", true)
	is("old", false)

	must(t, a.Client.AppsV1().Deployments("lab").Delete(ctx, "web", metav1.DeleteOptions{}))
	is("new", false)

	a.create(t, bare("last", corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "other"}}}))
	last := a.running(t, "last", "")
	is("other", true)
	a.stop() // as after a power cut: the pod is gone from home when it looks again
	must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, last.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	a.start()
	is("other", false)

	_, err = secrets.Patch(ctx, "other", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":"on"}}}`), metav1.PatchOptions{})
	must(t, err)
	is("other", true)
	seen := map[string]bool{}
	for e := range given.ResultChan() {
		o, ok := e.Object.(*corev1.Secret)
		if !ok {
			t.Fatal(e.Object)
		}
		seen[o.Name] = true
		if o.Name == "unused" {
			t.Fatal("the provider was given a Secret that no pod refers to")
		}
		if e.Type == watch.Added && o.Name == "other" && seen["end"] {
			break
		}
		seen["end"] = seen["end"] || e.Type == watch.Deleted && o.Name == "other"
	}
}

// rolledOut says what is missing for all pods of the Deployment to be the newest ones.
func (d *device) rolledOut(ctx context.Context, t *testing.T) string {
	var now *appsv1.Deployment
	now, err := d.Client.AppsV1().Deployments("lab").Get(ctx, "web", metav1.GetOptions{})
	must(t, err)
	if s := now.Status; s.ObservedGeneration < now.Generation || s.UpdatedReplicas != 2 || s.AvailableReplicas != 2 || s.Replicas != 2 {
		return fmt.Sprintf("%+v", s)
	}
	return ""
}

func revision(t *testing.T, o metav1.Object) int {
	t.Helper()
	n, err := strconv.Atoi(o.GetResourceVersion())
	must(t, err)
	return n
}
