package hostile

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// Three pods, each within its limit, fill memory until together they hold more than is lent:
// the furthest over its request leaves, and its home is told why. What keeps to its request
// stays, and so does what is the owner's.
func TestTenantsTogetherHoldWhatIsLent(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	mine := own(t, ctx, victim, "mine")
	configure(t, ctx, "share: {memory: 1%}\n")
	p := consumer(t, ctx, "mallory", "10.77.0.75")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)

	ram, err := strconv.ParseInt(strings.Fields(labtest.Must(t, ctx, victim, "grep", "MemTotal", "/proc/meminfo"))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	var part int64 // of a pod's limit, which is three quarters of it
	await.NoError(t, ctx, time.Minute, "the smaller share is in force", func() error {
		out, err := victim.Kubectl(ctx, "get", "namespace", twin, "-o", `jsonpath={.metadata.annotations.rivulet\.dev/memory}`)
		if err != nil {
			return err
		}
		limit, err := strconv.ParseInt(out, 10, 64)
		if part = limit / 3 * 4; err == nil && (part <= 0 || part > ram<<10/50) {
			err = fmt.Errorf("a pod may use %d of %d", limit, ram<<10)
		}
		return err
	})
	modest := run(t, ctx, c, twin, pod("modest"))
	hogs := map[string]*corev1.Pod{}
	for i := range 3 {
		hog := pod(fmt.Sprint("hog-", i))
		hog.Spec.Volumes = []corev1.Volume{{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}}
		hog.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"}}
		hogs[hog.Name] = run(t, ctx, c, twin, hog)
	}
	for name := range hogs {
		inside(t, ctx, twin, name, fmt.Sprintf("/bin/busybox dd if=/dev/zero of=/memory/x bs=1024 count=%d", part*45/100>>10))
	}
	left := func() (out []string) {
		for name, hog := range hogs {
			got, err := c.CoreV1().Pods(twin).Get(ctx, name, metav1.GetOptions{})
			if err == nil && got.UID == hog.UID && got.DeletionTimestamp == nil {
				out = append(out, name)
			}
		}
		return out
	}
	await.NoError(t, ctx, time.Minute, "a pod leaves", func() error {
		if l := left(); len(l) == 3 {
			return fmt.Errorf("%v hold %d each, %d is lent", l, cgroup(t, ctx, hogs[l[0]], "memory.current", "memory.usage_in_bytes"), part)
		}
		return nil
	})
	await.NoError(t, ctx, time.Minute, "its home is told", func() error {
		events, err := c.CoreV1().Events(twin).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == "Evicted" && hogs[e.InvolvedObject.Name] != nil && strings.Contains(e.Message, "than is lent") {
				return nil
			}
		}
		return fmt.Errorf("%d events, none of it", len(events.Items))
	})
	var held int64
	for _, name := range left() {
		held += cgroup(t, ctx, hogs[name], "memory.current", "memory.usage_in_bytes")
	}
	t.Logf("left are %v with %d of %d", left(), held, part)
	if len(left()) == 0 {
		t.Error("all left, and one would have been enough")
	}
	if got, err := c.CoreV1().Pods(twin).Get(ctx, modest.Name, metav1.GetOptions{}); err != nil || got.UID != modest.UID || got.DeletionTimestamp != nil {
		t.Errorf("a pod that keeps to its request: %v", err)
	}
	if out := labtest.Kubectl(t, ctx, victim, "get", "pod", "mine", "-o", "jsonpath={.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount}"); out != string(mine.UID)+" Running 0" {
		t.Errorf("the owner's pod: %s", out)
	}
}
