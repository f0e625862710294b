package hostile

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// cgroup reads the first of the victim's files that there is in a pod's cgroup, of
// either version.
func cgroup(t *testing.T, ctx context.Context, pod *corev1.Pod, files ...string) int64 {
	t.Helper()
	script := fmt.Sprintf(`for f in %s; do find /sys/fs/cgroup -path "*kubepods*" -path "*%s/$f" -exec cat {} \; 2>/dev/null; done | head -n 1`,
		strings.Join(files, " "), "pod"+string(pod.UID))
	out := strings.TrimSpace(labtest.Must(t, ctx, victim, "sh", "-c", script))
	n, err := strconv.ParseInt(out, 10, 64)
	if err != nil {
		t.Errorf("%v of %s: %q", files, pod.Name, out)
	}
	return n
}

// A pod that says nothing is held by the kernel: fewer capabilities, a filter of system
// calls, and bounds of memory and processes below those of the machine.
func TestTheKernelHoldsATenantsPod(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.70")
	twin := p.Twin(ctx, "lab")
	want := pod("held")
	want.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	got := run(t, ctx, p.Kubernetes(ctx), twin, want)

	status := inside(t, ctx, twin, "held", "cat /proc/self/status")
	field := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `:\s+(\w+)`).FindStringSubmatch(status)
		if m == nil {
			t.Fatalf("no %s in %s", name, status)
		}
		return m[1]
	}
	const mknod, netRaw = 1 << 27, 1 << 13
	if caps, err := strconv.ParseUint(field("CapBnd"), 16, 64); err != nil || caps&(mknod|netRaw) != 0 {
		t.Errorf("capabilities %x, %v: MKNOD or NET_RAW is among them", caps, err)
	}
	if field("Seccomp") != "2" {
		t.Errorf("Seccomp is %s, want 2, a filter", field("Seccomp"))
	}
	if out := inside(t, ctx, twin, "held", "/bin/busybox mknod /dev/shm/sda b 8 0 2>&1"); !strings.Contains(out, "not permitted") {
		t.Errorf("mknod: %q", out)
	}
	ram, err := strconv.ParseInt(strings.Fields(labtest.Must(t, ctx, victim, "grep", "MemTotal", "/proc/meminfo"))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if limit := cgroup(t, ctx, got, "memory.max", "memory.limit_in_bytes"); limit <= 0 || limit > ram<<10*7/8 {
		t.Errorf("memory %d of %d", limit, ram<<10)
	}
	if pids := cgroup(t, ctx, got, "pids.max"); pids <= 0 || pids > 4096 {
		t.Errorf("processes %d", pids)
	}
	t.Logf("memory %d of %d, processes %d", cgroup(t, ctx, got, "memory.max", "memory.limit_in_bytes"), ram<<10, cgroup(t, ctx, got, "pids.max"))
}

// An image that cannot be fetched tells a consumer nothing of the victim's network.
func TestARegistrysAnswerStaysHere(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.71")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	asks := func(name, image string) error {
		want := pod(name)
		want.Spec.Containers[0].Image = image
		_, err := c.CoreV1().Pods(twin).Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	for i, image := range []string{victimAddr + ":6443/x", "10.77.0.12:80/x", "localhost:6443/x", "[::1]:6443/x", "nas.local/x", "printer:631/x", "0xa4d000c:80/x"} {
		if err := asks(fmt.Sprint("x", i), image); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it refused", image, err)
		}
	}
	await.NoError(t, ctx, time.Minute, "a pod is made", func() error { return asks("blind", "registry.example.org/x:1") })
	await.NoError(t, ctx, time.Minute, "the image is missed, in the status and in an event", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, "blind", metav1.GetOptions{})
		if err != nil {
			return err
		}
		events, err := c.CoreV1().Events(twin).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		status, told := fmt.Sprint(got.Status.ContainerStatuses), ""
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "blind" {
				told += e.Message + "\n"
			}
		}
		for _, text := range []string{status, told} {
			for _, word := range []string{"dial", "lookup", "10.77.", "127.0.0.", "refused", "timeout", "unreachable", "https:"} {
				if strings.Contains(text, word) {
					t.Fatalf("%q in %s", word, text)
				}
			}
		}
		if !strings.Contains(status, "the image cannot be had here") || !strings.Contains(told, "the image cannot be had here") {
			return fmt.Errorf("%s; %s", status, told)
		}
		return nil
	})
}

// A process that ignores every signal it can, a hook that hangs and a grace period of
// years end within a minute after nothing is lent any more; so does what was deleted before.
func TestNothingOutlivesThePeering(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.72")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	stubborn := func(name string) *corev1.Pod {
		want := pod(name)
		want.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30 * 365 * 86400)
		hang := []string{"/bin/busybox", "sh", "-c", "trap '' TERM INT HUP; while :; do /bin/busybox sleep 1; done"}
		want.Spec.Containers[0].Command = hang
		want.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: hang}}}
		return run(t, ctx, c, twin, want)
	}
	pods := []*corev1.Pod{stubborn("one"), stubborn("two")}
	if _, err := c.CoreV1().Pods(twin).Patch(ctx, "two", types.MergePatchType, []byte(`{"metadata":{"finalizers":["rivulet.dev/kept"]}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("a hold without its label: %v", err)
	}
	if err := c.CoreV1().Pods(twin).Delete(ctx, "two", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](30 * 365 * 86400)}); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		t.Errorf("deleted with a grace period of years: %v, want refused", err)
	}
	if err := c.CoreV1().Pods(twin).Delete(ctx, "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	labtest.Must(t, ctx, victim, "rivulet", "peer", p.ID, "--provide=off", "--yes") // as unpeer does; that is how the test ends
	await.NoError(t, ctx, 2*time.Minute, "nothing of the pods runs", func() error {
		for _, one := range pods {
			out, err := victim.Run(ctx, "sh", "-c", `for f in $(find /sys/fs/cgroup -path "*pod`+string(one.UID)+`*" -name cgroup.procs 2>/dev/null); do cat $f; done`)
			if err != nil || strings.TrimSpace(out) != "" {
				return fmt.Errorf("%s: %v %s", one.Name, err, out)
			}
		}
		return nil
	})
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	} else {
		t.Logf("ended after %s", took.Round(time.Second))
	}
}
