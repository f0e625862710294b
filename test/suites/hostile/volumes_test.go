package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// A consumer reads its volume slowly and starts a pod with it meanwhile, to change what
// is read next: the pod waits until the files are carried, and starts then, also when
// the device's supervisor has crashed. What the pod before had left there, links, holes
// of terabytes, a device file where it could make one, gives nothing of the device and
// costs nothing.
func TestAVolumeIsNotReadAndUsedAtOnce(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.66")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	claim(t, ctx, c, twin)
	run(t, ctx, c, twin, withData("first"))
	sh := func(pod, line string) string { return inside(t, ctx, twin, pod, line) }
	sh("first", `cd /data && busybox mkdir d && echo mine >d/f && busybox ln -s /etc/shadow l && busybox ln -s / up && busybox mkfifo p && busybox head -c 30000000 /dev/urandom >big; busybox sync`)
	t.Logf("how a tenant's pod has its volume: %s", sh("first", `busybox grep ' /data ' /proc/mounts`))
	device := sh("first", `cd /data && busybox mknod disk b 254 0 2>&1 && echo made`)
	t.Logf("mknod in a tenant's pod: %s", device)
	const path = "/v1/volumes/lab/data"
	if r, err := p.Do(ctx, "GET", path+"/total", nil, nil); err != nil || r.Status != http.StatusConflict {
		t.Errorf("a volume in use: %v %v", r, err)
	}
	if strings.HasSuffix(device, "made") {
		gone(t, ctx, c, twin, "first")
		if r, err := p.Do(ctx, "GET", path+"/sum", nil, nil); err != nil || r.Status < 400 || !strings.Contains(r.String(), "device file") {
			t.Errorf("a device file: %v %v", r, err)
		}
		run(t, ctx, c, twin, withData("first"))
		sh("first", "busybox rm /data/disk")
	}
	gone(t, ctx, c, twin, "first")

	slowly := func() io.ReadCloser {
		t.Helper()
		var resp *http.Response
		await.NoError(t, ctx, time.Minute, "the volume is read", func() error {
			req, err := http.NewRequestWithContext(ctx, "GET", "https://"+p.Control()+path, nil)
			if err != nil {
				return err
			}
			if resp, err = p.Client().Do(req); err != nil {
				return err
			}
			if resp.StatusCode != http.StatusOK {
				raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
				resp.Body.Close()
				return fmt.Errorf("%s %s", resp.Status, raw)
			}
			return nil
		})
		if _, err := io.ReadFull(resp.Body, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		return resp.Body
	}
	waits := func(name string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, name+" waits for its volume", func() error {
			out, err := victim.Kubectl(ctx, "-n", twin, "get", "events", "-o", "jsonpath={range .items[*]}{.involvedObject.name} {.reason}\n{end}")
			if err == nil && !strings.Contains(out, name+" FailedMount") {
				err = errors.New(out)
			}
			return err
		})
		if got, err := c.CoreV1().Pods(twin).Get(ctx, name, metav1.GetOptions{}); err != nil || got.Status.Phase != corev1.PodPending {
			t.Errorf("%s: %v %v", name, got.Status.Phase, err)
		}
	}
	create := func(name string) {
		t.Helper()
		if _, err := c.CoreV1().Pods(twin).Create(ctx, withData(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	files := slowly()
	create("second")
	waits("second")
	raw, err := io.ReadAll(io.LimitReader(files, 64<<20))
	if err != nil || len(raw) < 30_000_000 {
		t.Errorf("the transfer ended: %d bytes, %v", len(raw), err)
	}
	files.Close()
	await.NoError(t, ctx, 3*time.Minute, "the pod that waited runs", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, "second", metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodRunning {
			err = errors.New(string(got.Status.Phase))
		}
		return err
	})
	// A hole of terabytes.
	if got := sh("second", "busybox truncate -s 16000000000000 /data/hole; busybox sync; busybox stat -c %s /data/hole"); got != "16000000000000" {
		t.Errorf("no hole was made: %q", got)
	}
	gone(t, ctx, c, twin, "second")
	for _, what := range []string{"/total", "/sum"} {
		begun := time.Now()
		r, err := p.Do(ctx, "GET", path+what, nil, http.Header{"Rivulet-Volume-Sum": {"data"}})
		if err != nil || r.Status != http.StatusRequestEntityTooLarge || time.Since(begun) > 15*time.Second {
			t.Errorf("%s with a hole of 16 TB: %v %v after %s", what, r, err, time.Since(begun))
		}
	}

	// A crash of the supervisor in the middle.
	run(t, ctx, c, twin, withData("third"))
	sh("third", "busybox rm /data/hole; busybox sync")
	gone(t, ctx, c, twin, "third")
	files = slowly()
	create("fourth")
	waits("fourth")
	if err := victim.Kill(ctx, "supervisor"); err != nil {
		t.Fatal(err)
	}
	files.Close()
	if err := victim.Start(ctx); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 4*time.Minute, "the pod runs after the crash", func() error {
		out, err := victim.Kubectl(ctx, "-n", twin, "get", "pod", "fourth", "-o", "jsonpath={.status.phase}")
		if err == nil && out != "Running" {
			err = errors.New(out)
		}
		return err
	})
	if got := sh("fourth", "busybox cat /data/d/f"); got != "mine" {
		t.Errorf("the data: %q", got)
	}
}

// A tenant makes no device file in its volume, and does not open one that got there otherwise,
// by a backup for example; and a setuid file that it leaves there is out of reach for the
// device's own users.
func TestAVolumeIsNoWayToTheDevice(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.76")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	claim(t, ctx, c, twin)
	root := withData("first")
	root.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}
	run(t, ctx, c, twin, root)
	sh := func(line string) string { return inside(t, ctx, twin, "first", line) }
	if out := sh(`/bin/busybox mknod /data/disk b 254 0 2>&1; /bin/busybox mknod /data/memory c 1 1 2>&1`); strings.Count(out, "not permitted") != 2 {
		t.Errorf("mknod in a volume: %q", out)
	}
	sh("/bin/busybox cp /bin/busybox /data/root && /bin/busybox chmod 4755 /data/root")
	folder := strings.TrimSpace(labtest.Must(t, ctx, victim, "sh", "-c", "ls -d /var/lib/rivulet/storage/"+twin+"_data_*"))
	if out := labtest.Must(t, ctx, victim, "stat", "-c", "%a %u", folder+"/root"); strings.TrimSpace(out) != "4755 0" {
		t.Errorf("the setuid file, seen from the device: %q; the test shows nothing", out)
	}
	// (setpriv itself keeps root's rights until it becomes a program.)
	if r := labtest.On(t, ctx, victim, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", `exec "$1" id`, "sh", folder+"/root"); !strings.Contains(r.Out+r.ErrOut, "ermission denied") {
		t.Errorf("a user of the device runs a tenant's setuid file: %v", r)
	}
	labtest.Must(t, ctx, victim, "sh", "-c", `cd "$1" && mknod -m 666 null c 1 3 && mknod -m 666 memory c 1 1 && mknod -m 666 kmsg c 1 11`, "sh", folder)
	if out := sh("/bin/busybox head -c 1 /data/null 2>&1 && echo opened"); !strings.HasSuffix(out, "opened") {
		t.Errorf("a device that every container has: %q; the test shows nothing", out)
	}
	for _, device := range []string{"memory", "kmsg"} {
		if out := sh("/bin/busybox head -c 1 /data/" + device + " 2>&1 && echo opened"); !strings.Contains(out, "not permitted") {
			t.Errorf("device file %s in a volume: %q", device, out)
		}
	}
}

// A tenant whose claim asks for little fills the disk of volumes: its pod ends while there is room, the owner's stays, and it is not let in
// again before its claim asks for what is in it. (The disk is a small one, which is mounted there.)
func TestAClaimIsNoWayToTheWholeDisk(t *testing.T) {
	const folder, size = "/var/lib/rivulet/storage", 600 << 20
	ctx := suite.Bounded(t, 6*time.Minute)
	mine := own(t, ctx, victim, "mine")
	labtest.Must(t, ctx, victim, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d,mode=700", size), "small", folder)
	labtest.CleanUp(t, func(ctx context.Context) { labtest.Must(t, ctx, victim, "umount", "-l", folder) })
	p := consumer(t, ctx, "mallory", "10.77.0.78")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	claim(t, ctx, c, twin)
	greedy := run(t, ctx, c, twin, withData("greedy"))
	labtest.On(t, ctx, victim, "rivulet", "kubectl", "exec", "-n", twin, "greedy", "--", "/bin/busybox", "sh", "-c",
		// As much of so small a disk in a second as a fast card would be of a real one.
		"/bin/busybox dd if=/dev/zero of=/data/first bs=1M count=450 2>/dev/null; i=0; while /bin/busybox dd if=/dev/zero of=/data/$i bs=1M count=1 2>/dev/null && /bin/busybox usleep 100000; do i=$((i+1)); done")
	free := func() int64 {
		t.Helper()
		n, err := strconv.ParseInt(strings.TrimSpace(labtest.Must(t, ctx, victim, "sh", "-c", "df --output=avail -B1 "+folder+" | tail -1")), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	await.NoError(t, ctx, time.Minute, "the pod ends", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, "greedy", metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && got.UID != greedy.UID {
			return nil
		}
		return fmt.Errorf("%v, and %d MiB are free", err, free()>>20)
	})
	left := free()
	t.Logf("%d of %d MiB are free", left>>20, size>>20)
	if left > size/10 || left < size/20 {
		t.Errorf("%d of %d MiB are free, want less than a tenth, and enough for the kubelet", left>>20, size>>20)
	}
	_, err := c.CoreV1().Pods(twin).Create(ctx, withData("again"), metav1.CreateOptions{})
	if !(apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) || !strings.Contains(err.Error(), "raise requests.storage") {
		t.Errorf("another pod: %v, want it refused with a cure", err)
	}
	if out := labtest.Kubectl(t, ctx, victim, "get", "pod", "mine", "-o", "jsonpath={.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount}"); out != string(mine.UID)+" Running 0" {
		t.Errorf("the owner's pod: %s", out)
	}
	if out := labtest.Kubectl(t, ctx, victim, "get", "event", "-n", twin, "--field-selector", "reason=Evicted,involvedObject.name=greedy", "-o", "jsonpath={.items[*].message}"); !strings.Contains(out, "asks for 64 MiB") {
		t.Errorf("its home is told %q", out)
	}
	labtest.Must(t, ctx, victim, "sh", "-c", "rm -f "+folder+"/"+twin+"_data_*/*") // the owner makes room
	await.NoError(t, ctx, time.Minute, "it is let in again", func() error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, withData("again"), metav1.CreateOptions{})
		return err
	})
}

// claim makes a tenant's claim named data.
func claim(t *testing.T, ctx context.Context, c kubernetes.Interface, twin string) {
	t.Helper()
	await.NoError(t, ctx, time.Minute, "the claim is made", func() error {
		_, err := c.CoreV1().PersistentVolumeClaims(twin).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}}}}, metav1.CreateOptions{})
		return err
	})
}

func withData(name string) *corev1.Pod {
	p := pod(name)
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

// gone ends a pod of the consumer.
func gone(t *testing.T, ctx context.Context, c kubernetes.Interface, namespace, name string) {
	t.Helper()
	if err := c.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, name+" is gone", func() error {
		_, err := c.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
}
