package translate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate/translatetest"
)

// The statuses of containers are those of a kubelet at home: they name no image by which a provider has it, and no
// request, limit or mount that home's spec does not have.
func TestAdditionsOfATargetAreNotInStatuses(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return out
	}
	zeros := list("cpu", "0", "memory", "0", "ephemeral-storage", "0")
	home, away := translatetest.Ungated(), translatetest.Running()
	there := &away.Status.ContainerStatuses[1]
	there.AllocatedResources, there.Resources = zeros, &corev1.ResourceRequirements{Requests: zeros, Limits: list("memory", "1Gi")}
	there.VolumeMounts = []corev1.VolumeMountStatus{{Name: "conf", MountPath: "/conf"}, {Name: "rivulet-home", MountPath: "/etc/hosts"}}
	away.Status.AllocatedResources, away.Status.Resources = zeros, &corev1.ResourceRequirements{Limits: list("memory", "1Gi")}

	st := Status(home, Away{Pod: away}, view)
	c := st.ContainerStatuses[0]
	if c.AllocatedResources != nil || !equality.Semantic.DeepEqual(c.Resources, &corev1.ResourceRequirements{}) || st.AllocatedResources != nil || st.Resources != nil {
		t.Errorf("without requests: %+v %+v; of the pod %+v %+v", c.AllocatedResources, c.Resources, st.AllocatedResources, st.Resources)
	}
	if len(c.VolumeMounts) != 1 || c.VolumeMounts[0].Name != "conf" {
		t.Errorf("mounts %+v", c.VolumeMounts)
	}
	home.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("cpu", "10m"), Limits: list("memory", "64Mi")}
	there.AllocatedResources["cpu"] = resource.MustParse("10m")
	there.Resources.Limits["memory"] = resource.MustParse("32Mi") // lowered there
	c = Status(home, Away{Pod: away}, view).ContainerStatuses[0]
	if !equality.Semantic.DeepEqual(c.AllocatedResources, list("cpu", "10m")) || !equality.Semantic.DeepEqual(*c.Resources, corev1.ResourceRequirements{Requests: list("cpu", "10m"), Limits: list("memory", "32Mi")}) {
		t.Errorf("with a request and a limit: %+v %+v", c.AllocatedResources, c.Resources)
	}
}

func TestImagesHaveTheNamesOfHome(t *testing.T) {
	const own, hash = "tenants.rivulet.invalid/0123456789abcdef0123456789abcdef/", "sha256:2d4d3f5d2cf4ee9bd3a4c2d0e9b2b1a7d5b6c8e3f1a9b0c7d6e5f4a3b2c1d0e9"
	for what, c := range map[string]struct{ spec, was, image, id, wantImage, wantID string }{
		"pulled by a tenant": {spec: "nginx:1.27", image: own + "docker.io/library/nginx:1.27", id: own + "docker.io/library/nginx@" + hash,
			wantImage: "docker.io/library/nginx:1.27", wantID: "docker.io/library/nginx@" + hash},
		"the owner's name of the same content": {spec: "nginx", image: "harbor.corp/secret/web:7", id: "harbor.corp/secret/web@" + hash,
			wantImage: "docker.io/library/nginx:latest", wantID: "docker.io/library/nginx@" + hash},
		"another tag of the same content": {spec: "quay.io/a/b:2", image: own + "quay.io/a/b:1", id: own + "quay.io/a/b@" + hash,
			wantImage: "quay.io/a/b:2", wantID: "quay.io/a/b@" + hash},
		"by digest": {spec: "quay.io/a/b@" + hash, image: own + "quay.io/a/b@" + hash, id: own + "quay.io/a/b@" + hash,
			wantImage: "quay.io/a/b@" + hash, wantID: "quay.io/a/b@" + hash},
		"a registry with a port": {spec: "registry.example.org:5000/a:1", image: own + "registry.example.org__5000/a:1", id: own + "registry.example.org__5000/a:1",
			wantImage: "registry.example.org:5000/a:1", wantID: "registry.example.org:5000/a:1"},
		"changed in the spec, and not yet there": {spec: "nginx:2", was: "docker.io/library/nginx:1", image: own + "docker.io/library/nginx:1", id: own + "docker.io/library/nginx@" + hash,
			wantImage: "docker.io/library/nginx:1", wantID: "docker.io/library/nginx@" + hash},
		"changed in the spec, and there": {spec: "nginx:2", was: "docker.io/library/nginx:1", image: own + "docker.io/library/nginx:2", id: own + "docker.io/library/nginx@" + hash,
			wantImage: "docker.io/library/nginx:2", wantID: "docker.io/library/nginx@" + hash},
		"imported, without a digest": {spec: "lab/web:1", image: "docker.io/lab/web:1", id: hash, wantImage: "docker.io/lab/web:1", wantID: hash},
		"not pulled yet":             {spec: "nginx", image: "nginx", wantImage: "nginx"},
		"of nothing that is known":   {spec: "nginx"},
		"no image's name":            {spec: "No Image", image: own + "x", id: own + "x", wantImage: "No Image"},
	} {
		for range 2 { // applied to its own result it changes nothing
			if c.image, c.id = imageAtHome(c.image, c.id, c.spec, c.was); c.image != c.wantImage || c.id != c.wantID {
				t.Errorf("%s: %q %q, want %q %q", what, c.image, c.id, c.wantImage, c.wantID)
			}
			c.was = c.image
		}
	}
}

// Times of a target whose clock is wrong stand at home as home's controllers need them: never in the future, the start
// not before the pod's creation, a turn of a condition not before home's last one, and none changes by itself.
func TestTimesAreByHomesClock(t *testing.T) {
	now := time.Now()
	made := metav1.NewTime(now.Add(-time.Minute).Truncate(time.Second))
	for what, skew := range map[string]time.Duration{"ahead": 50 * time.Second, "behind": -10 * time.Minute, "right": 0} {
		there := metav1.NewTime(now.Add(skew).Truncate(time.Second))
		home, away := translatetest.Ungated(), translatetest.Running()
		home.CreationTimestamp = made
		away.Status.StartTime = &there
		for i := range away.Status.Conditions {
			away.Status.Conditions[i].LastTransitionTime = there
		}
		c := &away.Status.ContainerStatuses[1]
		c.State.Running.StartedAt = there
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ContainerID: "c-0", StartedAt: there, FinishedAt: there}
		check := func(st corev1.PodStatus) {
			t.Helper()
			at := []metav1.Time{*st.StartTime, Condition(&st, corev1.PodReady).LastTransitionTime, Condition(&st, corev1.PodInitialized).LastTransitionTime}
			for _, one := range at {
				if one.Before(&made) || one.After(time.Now()) {
					t.Errorf("%s: %s, now is %s, made at %s", what, one, now, made)
				}
			}
			if c := st.ContainerStatuses[0]; c.State.Running.StartedAt.After(time.Now()) || c.LastTerminationState.Terminated.FinishedAt.After(time.Now()) {
				t.Errorf("%s: %+v", what, c)
			}
		}
		home.Status = Status(home, Away{Pod: away}, view)
		check(home.Status)
		if again := Status(home, Away{Pod: away}, view); !equality.Semantic.DeepEqual(again, home.Status) {
			t.Errorf("%s: a time changes by itself: %+v then %+v", what, home.Status, again)
		}
		home.Status = Unready(home, "b does not answer")
		cut := Condition(&home.Status, corev1.PodReady).LastTransitionTime
		home.Status = Status(home, Away{Pod: away}, view)
		if back := Condition(&home.Status, corev1.PodReady); back.Status != corev1.ConditionTrue || back.LastTransitionTime.Before(&cut) {
			t.Errorf("%s: ready again since %s, and not since %s", what, back.LastTransitionTime, cut)
		}
		check(home.Status)
	}
}
