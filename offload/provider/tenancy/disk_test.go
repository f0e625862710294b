package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/nodeagent/filetree"
	"rivulet/test/harness/await"
)

// disk is what each node of the tests reports; nil is an empty disk. disksMeasured counts the times that volumes were asked for.
var (
	disk          atomic.Pointer[filetree.Usage]
	disksMeasured atomic.Int32
)

func (folders) NodeOf(v *corev1.PersistentVolume) string {
	if v.Spec.Local == nil {
		return ""
	}
	return v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
}

func (folders) Usage(_ context.Context, _ string, of []*corev1.PersistentVolume) (filetree.Usage, error) {
	if len(of) > 0 {
		disksMeasured.Add(1)
	}
	if u := disk.Load(); u != nil {
		return *u, nil
	}
	return filetree.Usage{Disk: filetree.Disk{Size: 1 << 40, Free: 1 << 40}}, nil
}

func TestBeyondAClaim(t *testing.T) {
	for what, x := range map[string]struct {
		taken filetree.Taken
		asked int64
		want  bool
	}{
		"nothing":                     {filetree.Taken{}, 0, false},
		"what it asks for":            {filetree.Taken{Total: filetree.Total{Files: 1000, Bytes: 1 << 30}}, 1 << 30, false},
		"what a file system needs":    {filetree.Taken{Total: filetree.Total{Bytes: 16 << 20}}, 1 << 20, false},
		"more":                        {filetree.Taken{Total: filetree.Total{Bytes: 18 << 20}}, 1 << 20, true},
		"a fifth more":                {filetree.Taken{Total: filetree.Total{Bytes: 12 << 30}}, 10 << 30, true},
		"files without number":        {filetree.Taken{Total: filetree.Total{Files: 102_000}}, 1 << 20, true},
		"files that nobody can count": {filetree.Taken{Unmeasured: true}, 1 << 40, true},
	} {
		if got := beyond(x.taken, x.asked); got != x.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// Where a disk is short, pods end whose claims have more in them than they ask for, and come back when there is space;
// where it is full, those of every claim there.
func testDisks(t *testing.T, p *provider) {
	ctx := t.Context()
	t.Cleanup(func() { disk.Store(nil) })
	twin := p.twinOf(t, carol, "disks")
	c, _ := p.consumer(t, carol, nil)
	volume := map[string]string{}
	for _, name := range []string{"greedy", "modest"} {
		made, err := c.CoreV1().PersistentVolumeClaims(twin).Create(ctx, asks(name, ownClass), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v := owners("pvc-"+string(made.UID), ownClass)
		v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "rivulet.dev/local-path"}
		v.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: twin, Name: name, UID: made.UID}
		v.Spec.HostPath, v.Spec.Local = nil, &corev1.LocalVolumeSource{Path: "/volumes/" + twin + "_" + name + "_" + v.Name}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}}}}
		if _, err := p.admin.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		volume[name] = v.Name
		await.True(t, time.Minute, "claim "+name+" is bound", func() bool {
			got, err := c.CoreV1().PersistentVolumeClaims(twin).Get(ctx, name, metav1.GetOptions{})
			return err == nil && got.Status.Phase == corev1.ClaimBound
		})
	}
	using := func(claim string) *corev1.Pod {
		return bare(claim, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		})
	}
	pods := p.admin.CoreV1().Pods(twin)
	start := func(claim string) {
		t.Helper()
		await.Empty(t, time.Minute, "pod "+claim+" is let in", func(ctx context.Context) string {
			_, err := c.CoreV1().Pods(twin).Create(ctx, using(claim), metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) {
				return ""
			}
			return err.Error()
		})
		if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: claim}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(claim, why string) {
		t.Helper()
		await.Empty(t, time.Minute, "pod "+claim+" ends", func(ctx context.Context) string {
			got, err := pods.Get(ctx, claim, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return ""
			}
			if err != nil || got.DeletionTimestamp == nil || *got.DeletionGracePeriodSeconds > evictedGrace {
				return fmt.Sprintf("%v %v", err, got.DeletionTimestamp)
			}
			return ""
		})
		events, err := c.CoreV1().Events(twin).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + claim + ",reason=Evicted"})
		if err != nil || !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, why) }) {
			t.Errorf("its home is told %v, %v, want %q", events.Items, err, why)
		}
		await.Empty(t, time.Minute, "and gets no other one", func(ctx context.Context) string {
			_, err := c.CoreV1().Pods(twin).Create(ctx, bare("next", func(p *corev1.Pod) { p.Spec.Volumes = using(claim).Spec.Volumes }), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if !kept(err, "the disk here is nearly full") {
				return fmt.Sprint(err)
			}
			return ""
		})
		if err := pods.Delete(ctx, claim, *metav1.NewDeleteOptions(0)); err != nil && !apierrors.IsNotFound(err) { // the kubelet's part
			t.Fatal(err)
		}
	}
	const size = 100 << 30
	state := func(free, greedy int64) {
		disk.Store(&filetree.Usage{Disk: filetree.Disk{Size: size, Free: free}, Volumes: map[string]filetree.Taken{
			volume["greedy"]: {Total: filetree.Total{Files: 1, Bytes: greedy}}, volume["modest"]: {Total: filetree.Total{Files: 1, Bytes: 1 << 20}}}})
	}
	state(size/2, 40<<30) // nobody is hurt by that
	start("greedy")
	start("modest")
	state(size/11, 40<<30)
	ends("greedy", "raise requests.storage of the claim")
	if got, err := pods.Get(ctx, "modest", metav1.GetOptions{}); err != nil || got.DeletionTimestamp != nil {
		t.Errorf("the one that keeps to its claim: %v, %v", err, got)
	}
	state(size/9, 40<<30) // enough for others, not for it
	seen := disksMeasured.Load()
	await.True(t, time.Minute, "it is measured twice more", func() bool { return disksMeasured.Load() > seen+1 })
	ns, err := p.admin.CoreV1().Namespaces().Get(ctx, twin, metav1.GetOptions{})
	if err != nil || ns.Annotations[stoppedAnnotation] != "greedy" {
		t.Errorf("%v %v", err, ns.Annotations)
	}
	state(size/9, 1<<20) // it was emptied, or asks for more
	start("greedy")
	state(size/50, 1<<20)
	ends("greedy", "ask its owner")
	ends("modest", "ask its owner")
	state(size/2, 40<<30)
	start("modest")
	start("greedy")
}
