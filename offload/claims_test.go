package offload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/health"
	"rivulet/offload/consumer/move"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestClaimsAway is the story of claims: they get their volume where the pod lands, draw
// it there ever after, hold the twin, and are moved. Both clusters have the real
// provisioner of folders; only containers are not there, so the test writes the files.
func TestClaimsAway(t *testing.T) {
	a, b := world(t)
	for _, d := range []*device{a, b} {
		apiserver.StartKubelet(t, d.Server, d.name+"-node")
		d.provision(t)
	}
	a.cordon(t, "a-node", true) // home is full
	a.offloadNamespace(t, "lab")
	ctx := t.Context()
	a.create(t, database())

	var pod *corev1.Pod
	var folder string
	t.Run("the volume is where the pod lands", func(t *testing.T) {
		pod = a.running(t, "db-0", "")
		v := a.volumeOf(t, "data-db-0")
		if pod.Spec.NodeName != "b" || volume.Node(v) != "b" || v.Labels[volume.AwayLabel] != string(b.identity.ID) {
			t.Fatalf("pod on %s, volume %+v", pod.Spec.NodeName, v)
		}
		away := b.twinClaims(t)
		if len(away) != 1 || away[0].Status.Phase != corev1.ClaimBound || away[0].Labels[volume.VolumeLabel] != v.Name {
			t.Fatalf("claims on b: %+v", away)
		}
		folder = b.folderOf(t, "data-db-0")
		must(t, os.WriteFile(filepath.Join(folder, "x"), []byte("one"), 0o600))
		a.reachable(t, "data-db-0", corev1.ConditionTrue, "the data are on b")
	})

	t.Run("the next pod finds it, over restarts of both", func(t *testing.T) {
		a.cordon(t, "a-node", false) // there would be room at home now
		b.stop()
		b.start()
		a.stop()
		a.start()
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "db-0", metav1.DeleteOptions{}))
		next := a.running(t, "db-0", pod.UID)
		if next.Spec.NodeName != "b" || len(b.twinClaims(t)) != 1 || b.folderOf(t, "data-db-0") != folder {
			t.Errorf("on %s, claims %+v", next.Spec.NodeName, b.twinClaims(t))
		}
	})

	t.Run("a cut link is told, and nothing is lost", func(t *testing.T) {
		a.fabric.setCut(true)
		a.reachable(t, "data-db-0", corev1.ConditionFalse, "cannot be reached")
		_, err := a.offload.Move(ctx, move.Request{Namespace: "lab", Claim: "data-db-0", To: move.Home, Evict: true})
		says(t, err, "cannot be reached")
		a.fabric.setCut(false)
		a.reachable(t, "data-db-0", corev1.ConditionTrue, "the data are on b")
		if n := len(b.twinClaims(t)); n != 1 {
			t.Errorf("%d claims", n)
		}
	})

	t.Run("a peer without a tunnel stays a target", func(t *testing.T) {
		pod := a.running(t, "db-0", "").UID
		a.fabric.setUnlinked("its key is another peer's")
		a.reachable(t, "data-db-0", corev1.ConditionFalse, "cannot be reached")
		a.fabric.setUnlinked("")
		a.reachable(t, "data-db-0", corev1.ConditionTrue, "the data are on b")
		if now := a.running(t, "db-0", "").UID; now != pod {
			t.Error("its pod was made again")
		}
	})

	t.Run("a claim grows", func(t *testing.T) {
		_, err := a.Client.CoreV1().PersistentVolumeClaims("lab").Patch(ctx, "data-db-0", types.MergePatchType,
			[]byte(`{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}`), metav1.PatchOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "grown on both sides", func(ctx context.Context) string {
			home, away := a.claim(t, "data-db-0"), b.twinClaims(t)[0]
			if got := home.Status.Capacity[corev1.ResourceStorage]; got.String() != "2Mi" {
				return "home " + got.String()
			}
			if got := away.Status.Capacity[corev1.ResourceStorage]; got.String() != "2Mi" {
				return "away " + got.String()
			}
			return ""
		})
	})

	t.Run("a move is refused before anything is touched", func(t *testing.T) { refusedMoves(t, a) })

	t.Run("home", func(t *testing.T) {
		before := a.claim(t, "data-db-0").UID
		a.move(t, "data-db-0", move.Home, true) // the StatefulSet's next pod waits for it
		v := a.volumeOf(t, "data-db-0")
		if raw, err := os.ReadFile(filepath.Join(v.Spec.Local.Path, "x")); err != nil || string(raw) != "one" || !strings.HasPrefix(v.Spec.Local.Path, a.volumes) {
			t.Fatalf("%q %v in %s", raw, err, v.Spec.Local.Path)
		}
		if a.claim(t, "data-db-0").UID == before {
			t.Error("the claim is the same")
		}
		a.runsOn(t, "db-0", "a-node")
		b.nothingLeft(t, folder)
	})

	t.Run("and to the peer again", func(t *testing.T) {
		a.move(t, "data-db-0", "b", true)
		a.runsOn(t, "db-0", "b")
		folder = b.folderOf(t, "data-db-0")
		if raw, err := os.ReadFile(filepath.Join(folder, "x")); err != nil || string(raw) != "one" {
			t.Errorf("%q %v", raw, err)
		}
		await.Empty(t, time.Minute, "home's copy is gone", func(context.Context) string {
			if left, _ := os.ReadDir(a.volumes); len(left) > 0 {
				return left[0].Name()
			}
			return ""
		})
	})

	t.Run("a twin with data is not given back", func(t *testing.T) {
		label(t, a, "")
		await.Empty(t, time.Minute, "the namespace says which claims", func(ctx context.Context) string {
			events, err := a.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=TwinHeld"})
			must(t, err)
			for _, e := range events.Items {
				if strings.Contains(e.Message, "data-db-0") && strings.Contains(e.Message, "rivulet move volume lab/") {
					return ""
				}
			}
			return "no event"
		})
		if _, err := os.Stat(filepath.Join(folder, "x")); err != nil {
			t.Fatal(err)
		}
		a.move(t, "data-db-0", move.Home, true)
		await.Empty(t, time.Minute, "then it is", func(ctx context.Context) string {
			list, err := b.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
			must(t, err)
			if len(list.Items) > 0 {
				return list.Items[0].Name
			}
			return ""
		})
		label(t, a, string(policy.Burst))
	})

	t.Run("volumes of a pod's own", func(t *testing.T) {
		a.cordon(t, "a-node", true)
		p := bare("own", spec())
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: asks("1Mi")}}}}}
		a.create(t, p)
		if p := a.running(t, "own", ""); p.Spec.NodeName != "b" || len(b.twinClaims(t)) != 1 {
			t.Errorf("on %s, %+v", p.Spec.NodeName, b.twinClaims(t))
		}
		_, err := a.offload.Move(ctx, move.Request{Namespace: "lab", Claim: "own-v", To: move.Home})
		says(t, err, "ephemeral volume and goes with pod own")
		own := b.folderOf(t, "own-v")
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "own", metav1.DeleteOptions{}))
		b.nothingLeft(t, own)
	})

	t.Run("what the provider does not take, the scheduler gets back", func(t *testing.T) {
		twin := b.twinClaimsNamespace(t)
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "full"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.storage": resource.MustParse("1Ki")}}}
		_, err := b.Client.CoreV1().ResourceQuotas(twin).Create(ctx, q, metav1.CreateOptions{})
		must(t, err)
		await.Empty(t, time.Minute, "the quota is in force", func(ctx context.Context) string {
			q, err := b.Client.CoreV1().ResourceQuotas(twin).Get(ctx, "full", metav1.GetOptions{})
			must(t, err)
			if len(q.Status.Hard) == 0 {
				return "not yet"
			}
			return ""
		})
		a.create(t, user("big", "big"))
		a.claims(t, "big", asks("1Gi"))
		a.event(t, "big", "ProvisioningFailed", "refuses the volume")
		a.cordon(t, "a-node", false)
		if p := a.running(t, "big", ""); p.Spec.NodeName != "a-node" {
			t.Errorf("on %s", p.Spec.NodeName)
		}
		must(t, b.Client.CoreV1().ResourceQuotas(twin).Delete(ctx, "full", metav1.DeleteOptions{}))
	})

	t.Run("kept at home, or away, as asked", func(t *testing.T) {
		a.cordon(t, "a-node", true)
		a.claims(t, "mine", asks("1Mi"), func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{policy.ReflectAnnotation: policy.ReflectOff}
		})
		a.create(t, user("mine", "mine"))
		a.event(t, "mine", "ProvisioningFailed", "keeps it at home")
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "mine", metav1.DeleteOptions{}))

		many := asks("1Mi")
		many.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		a.claims(t, "many", many)
		a.create(t, user("many", "many"))
		a.event(t, "many", "ProvisioningFailed", "use ReadWriteOnce")
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "many", metav1.DeleteOptions{}))
	})

	t.Run("retained data outlive the claim", func(t *testing.T) {
		keep := corev1.PersistentVolumeReclaimRetain
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		_, err := a.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "keep"},
			Provisioner: volume.Provisioner, ReclaimPolicy: &keep, VolumeBindingMode: &wait}, metav1.CreateOptions{})
		must(t, err)
		s := asks("1Mi")
		s.StorageClassName = ptr.To("keep")
		a.claims(t, "kept", s)
		a.create(t, user("kept", "kept"))
		a.running(t, "kept", "")
		v, dir := a.volumeOf(t, "kept"), b.folderOf(t, "kept")
		must(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600))
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "kept", metav1.DeleteOptions{}))
		a.gone(t, "kept")
		must(t, a.Client.CoreV1().PersistentVolumeClaims("lab").Delete(ctx, "kept", metav1.DeleteOptions{}))
		must(t, a.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "the volume is gone from home", func(ctx context.Context) string {
			if _, err := a.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprint(err)
			}
			return ""
		})
		a.stop() // what belongs to nobody is looked for at the start
		a.start()
		a.nodeIs(t, "b")
		if _, err := os.Stat(filepath.Join(dir, "x")); err != nil {
			t.Error(err)
		}
		if away := b.twinClaims(t); len(away) != 1 || away[0].Labels[volume.RetainedLabel] == "" {
			t.Errorf("%+v", away)
		}
	})

	t.Run("a provider that has left", func(t *testing.T) {
		a.claims(t, "lost", asks("1Mi"))
		a.create(t, user("lost", "lost"))
		a.running(t, "lost", "")
		v := a.volumeOf(t, "lost")
		a.fabric.unpeer()
		a.reachable(t, "lost", corev1.ConditionFalse, "no peer any more")
		must(t, a.Client.CoreV1().Pods("lab").Delete(ctx, "lost", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		must(t, a.Client.CoreV1().PersistentVolumeClaims("lab").Delete(ctx, "lost", metav1.DeleteOptions{}))
		await.Empty(t, time.Minute, "nothing hangs", func(ctx context.Context) string {
			if _, err := a.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprint(err)
			}
			return ""
		})
	})
}

func refusedMoves(t *testing.T, a *device) {
	for _, x := range []struct {
		claim, to, want string
	}{
		{"none", "b", "there is no claim lab/none; see: kubectl get pvc"},
		{"data-db-0", "nowhere", "there is no virtual node nowhere"},
		{"data-db-0", "b", "on b already"},
		{"data-db-0", move.Home, "in use by db-0; stop what uses it"},
	} {
		_, err := a.offload.Move(t.Context(), move.Request{Namespace: "lab", Claim: x.claim, To: x.to})
		says(t, err, x.want)
	}
	a.claims(t, "unused", asks("1Mi"))
	_, err := a.offload.Move(t.Context(), move.Request{Namespace: "lab", Claim: "unused", To: "b"})
	says(t, err, "has no volume yet")
	if c := a.claim(t, "data-db-0"); c.DeletionTimestamp != nil || len(c.Finalizers) != 1 {
		t.Errorf("touched: %+v", c.ObjectMeta)
	}
}

func says(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// provision runs the device's provisioner of folders.
func (d *device) provision(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	c := volumes.New(volumes.Config{Client: d.Client, Local: d.local, Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)})
	go func() { done <- c.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
}

func (d *device) cordon(t *testing.T, node string, on bool) {
	t.Helper()
	_, err := d.Client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on), metav1.PatchOptions{})
	must(t, err)
}

func label(t *testing.T, d *device, when string) {
	t.Helper()
	value := "null"
	if when != "" {
		value = `"` + when + `"`
	}
	_, err := d.Client.CoreV1().Namespaces().Patch(t.Context(), "lab", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, policy.NamespaceLabel, value), metav1.PatchOptions{})
	must(t, err)
}

func asks(size string) corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}}
}

func (d *device) claims(t *testing.T, name string, spec corev1.PersistentVolumeClaimSpec, change ...func(*corev1.PersistentVolumeClaim)) {
	t.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	for _, f := range change {
		f(c)
	}
	_, err := d.Client.CoreV1().PersistentVolumeClaims("lab").Create(t.Context(), c, metav1.CreateOptions{})
	must(t, err)
}

func user(name, claim string) *corev1.Pod {
	p := bare(name, spec())
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	return p
}

func database() *appsv1.StatefulSet {
	s := set()
	s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: asks("1Mi")}}
	s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return s
}

func (d *device) claim(t *testing.T, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	c, err := d.Client.CoreV1().PersistentVolumeClaims("lab").Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return c
}

func (d *device) volumeOf(t *testing.T, claim string) *corev1.PersistentVolume {
	t.Helper()
	v, err := d.Client.CoreV1().PersistentVolumes().Get(t.Context(), d.claim(t, claim).Spec.VolumeName, metav1.GetOptions{})
	must(t, err)
	return v
}

func (d *device) twinClaimsNamespace(t *testing.T) string {
	t.Helper()
	name := ""
	await.Empty(t, time.Minute, "a twin", func(ctx context.Context) string {
		list, err := d.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel})
		must(t, err)
		for _, ns := range list.Items {
			if ns.DeletionTimestamp == nil {
				name = ns.Name
				return ""
			}
		}
		return "none"
	})
	return name
}

// twinClaims are those that d holds for others.
func (d *device) twinClaims(t *testing.T) []corev1.PersistentVolumeClaim {
	t.Helper()
	list, err := d.Client.CoreV1().PersistentVolumeClaims("").List(t.Context(), metav1.ListOptions{LabelSelector: volume.VolumeLabel})
	must(t, err)
	return list.Items
}

// folderOf is where d has the files of somebody's claim.
func (d *device) folderOf(t *testing.T, claim string) string {
	t.Helper()
	for _, c := range d.twinClaims(t) {
		if c.Annotations[volume.HomeClaimAnnotation] == claim && c.DeletionTimestamp == nil {
			v, err := d.Client.CoreV1().PersistentVolumes().Get(t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
			must(t, err)
			return v.Spec.Local.Path
		}
	}
	t.Fatalf("no claim for %s", claim)
	return ""
}

func (d *device) nothingLeft(t *testing.T, folder string) {
	t.Helper()
	await.Empty(t, time.Minute, "nothing is left on "+d.name, func(context.Context) string {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			return folder + " is there"
		}
		if left := d.twinClaims(t); len(left) > 0 {
			return left[0].Name
		}
		return ""
	})
}

func (d *device) reachable(t *testing.T, claim string, status corev1.ConditionStatus, part string) {
	t.Helper()
	await.Empty(t, time.Minute, fmt.Sprintf("%s reachable: %s", claim, status), func(context.Context) string {
		conditions := d.claim(t, claim).Status.Conditions
		for _, c := range conditions {
			if c.Type == volume.ReachableCondition && c.Status == status && strings.Contains(c.Message, part) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", conditions)
	})
}

func (d *device) nodeIs(t *testing.T, name string) {
	t.Helper()
	await.Empty(t, time.Minute, name+" is Ready", func(ctx context.Context) string {
		n, err := d.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return nodeReady(n)
	})
}

func (d *device) event(t *testing.T, about, reason, part string) {
	t.Helper()
	await.Empty(t, time.Minute, about+": "+reason, func(ctx context.Context) string {
		events, err := d.Client.CoreV1().Events("lab").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + about})
		must(t, err)
		var seen []string
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, part) {
				return ""
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return strings.Join(seen, "; ")
	})
}

// move moves a claim and fails the test unless it gets there.
func (d *device) move(t *testing.T, claim, to string, evict bool) {
	t.Helper()
	var job *move.Job
	await.Empty(t, time.Minute, "the move begins", func(ctx context.Context) string {
		var err error
		if job, err = d.offload.Move(ctx, move.Request{Namespace: "lab", Claim: claim, To: to, Evict: evict}); err != nil {
			return err.Error()
		}
		return ""
	})
	await.Empty(t, 2*time.Minute, claim+" is moved to "+to, func(ctx context.Context) string {
		select {
		case <-job.Ended():
			must(t, job.Err())
			return ""
		default:
			return fmt.Sprintf("%+v", job.Progress())
		}
	})
}
