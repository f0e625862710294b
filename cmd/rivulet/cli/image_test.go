package cli

import (
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/appliance/engine/images"
	"rivulet/offload"
)

// An image in use stays; the pods are found by whatever they call it.
func TestImagesInUse(t *testing.T) {
	held := []images.Held{
		{Image: images.Image{Name: "docker.io/library/web:1"}, Bytes: 6_500_000, Platforms: []string{"linux/amd64", "linux/arm/v7"}},
		{Image: images.Image{Name: "docker.io/library/old:1"}}, {Image: images.Image{Name: "tenant/x:1"}, Containers: 2},
	}
	pods := []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web-1"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Image: "web:1"}}, Containers: []corev1.Container{{Image: "docker.io/library/web:1"}, {Image: "%%%"}}}}}
	list := withPods(held, pods)
	if strings.Join(list[0].Pods, " ") != "lab/web-1" || len(list[1].Pods) != 0 {
		t.Errorf("used by %+v", list)
	}
	for _, c := range []struct {
		name  string
		force bool
		want  string // "!": of the error
	}{
		{"web:1", false, "!used by lab/web-1"}, {"web:1", true, "docker.io/library/web:1"}, {"old:1", false, "docker.io/library/old:1"},
		{"tenant/x:1", false, "!2 containers"}, {"none:1", false, "!no image none:1"}, {"Bad", false, "!NAME:TAG"},
	} {
		got, err := removable(list, c.name, c.force)
		if want, fails := strings.CutPrefix(c.want, "!"); fails && (err == nil || !strings.Contains(err.Error(), want)) || !fails && (err != nil || got != want) {
			t.Errorf("rm %s, force %v: %q, %v, want %s", c.name, c.force, got, err, c.want)
		}
	}
	var out strings.Builder
	if err := printImages(&out, list, true); err != nil || !strings.Contains(out.String(), "6.5 MB  amd64,arm  false  1") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// --to names peers that pods can go to.
func TestNodesOf(t *testing.T) {
	st := api.Status{}
	st.VirtualNodes = []offload.VirtualNode{{Name: "b", Target: "b", Ready: true}, {Name: "b-arm64", Target: "b", Ready: true}, {Name: "c", Target: "c"}}
	for named, want := range map[string]int{"": 2, "b": 2, "b-arm64": 1, "c": -1, "b,nobody": -1} {
		var names []string
		if named != "" {
			names = strings.Split(named, ",")
		}
		got, err := nodesOf(st, names)
		if (err != nil) != (want < 0) || want >= 0 && len(got) != want {
			t.Errorf("%q: %d nodes, %v, want %d", named, len(got), err, want)
		}
	}
}

// What was pushed, no pod has and nothing will make a pod of may go.
func TestUnusedImages(t *testing.T) {
	image := func(name, content string, kept bool, containers int) heldImage {
		return heldImage{Held: images.Held{Image: images.Image{Name: name, Digest: digest.FromString(content), Kept: kept}, Containers: containers}}
	}
	list := []heldImage{
		image("docker.io/library/web:1", "web", true, 0), image("docker.io/library/same:1", "web", true, 0), image("docker.io/library/old:1", "old", true, 0),
		image("docker.io/library/got:1", "got", false, 0), image("tenant/x:1", "x", true, 1),
	}
	pods := []corev1.Pod{{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "web:1"}}}}}
	if got := strings.Join(unusedOf(list, pods), " "); got != "docker.io/library/old:1" {
		t.Errorf("%s may go", got)
	}
}
