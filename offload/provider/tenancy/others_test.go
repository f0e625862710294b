package tenancy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// kept is whether err is a refusal in these words.
func kept(err error, words string) bool {
	return (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) && strings.Contains(err.Error(), words)
}

// antiAffine wants no node with a pod of another namespace.
func antiAffine(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, NamespaceSelector: &metav1.LabelSelector{},
		LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: policy.OriginLabel, Operator: metav1.LabelSelectorOpDoesNotExist}}}}}}}
}

// The scheduler holds the affinity of a tenant's pod against pods of the owner and of others, and lets it onto nodes whose taints it
// tolerates: it has neither, whoever makes it, nor gets it later.
func testOthersPods(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "others")
	c, _ := p.consumer(t, carol, nil)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	await.Empty(t, time.Minute, "a plain pod is let in", func(ctx context.Context) string {
		if _, err := c.CoreV1().Pods(twin).Create(ctx, bare("x", nil), dry); err != nil {
			return err.Error()
		}
		return ""
	})
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{}}
	for what, affinity := range map[string]*corev1.Affinity{
		"podAffinity":     {PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}},
		"podAntiAffinity": {PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: term}}}},
	} {
		_, err := c.CoreV1().Pods(twin).Create(ctx, bare("x", func(p *corev1.Pod) { p.Spec.Affinity = affinity }), dry)
		if !kept(err, "spec.affinity."+what) {
			t.Errorf("%s: %v, want it refused by name", what, err)
		}
	}
	if _, err := p.admin.CoreV1().Pods(twin).Create(ctx, bare("x", antiAffine), dry); !kept(err, "spec.affinity.podAntiAffinity") {
		t.Errorf("anti-affinity over all namespaces, by a controller: %v, want it refused", err)
	}

	// The second line, where there are no policies: a quota.
	twinQuota, err := p.admin.CoreV1().ResourceQuotas(twin).Get(ctx, apartName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const plain = "no-twin"
	if _, err := p.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: plain}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.admin.CoreV1().ResourceQuotas(plain).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: apartName}, Spec: twinQuota.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Empty(t, time.Minute, "the quota is in force, and holds for that only", func(ctx context.Context) string {
		_, anti := p.admin.CoreV1().Pods(plain).Create(ctx, bare("x", antiAffine), dry)
		_, other := p.admin.CoreV1().Pods(plain).Create(ctx, bare("x", func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
		}), dry)
		if !kept(anti, "exceeded quota: "+apartName) || other != nil {
			return fmt.Sprint(anti, "; ", other)
		}
		return ""
	})
	if err := p.admin.CoreV1().Namespaces().Delete(ctx, plain, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	// Taints of the owner.
	usual := func(p *corev1.Pod) bool {
		return len(p.Spec.Tolerations) == 2 && !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Effect != corev1.TaintEffectNoExecute || t.Key != corev1.TaintNodeNotReady && t.Key != corev1.TaintNodeUnreachable
		})
	}
	for what, t1 := range map[string]corev1.Toleration{
		"all":                   {Operator: corev1.TolerationOpExists},
		"all by effect":         {Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
		"cordoned":              {Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		"the owner's":           {Key: "gpu", Value: "kept", Effect: corev1.TaintEffectNoSchedule},
		"not ready, any effect": {Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	} {
		made, err := c.CoreV1().Pods(twin).Create(ctx, bare("x", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{t1} }), dry)
		if err != nil || !usual(made) {
			t.Errorf("%s: %v, the pod tolerates %+v", what, err, made.Spec.Tolerations)
		}
	}
	made, err := c.CoreV1().Pods(twin).Create(ctx, bare("later", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made, err = c.CoreV1().Pods(twin).Patch(ctx, made.Name, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}},"spec":{"tolerations":[{"key":"gpu","operator":"Exists"}]}}`), metav1.PatchOptions{}); err != nil ||
		!usual(made) || made.Labels["a"] != "b" {
		t.Errorf("added later: %v, %v tolerates %+v", err, made.Labels, made.Spec.Tolerations)
	}
	p.release(t, carol, "others")
}

// A runtime class is lent by a label and taken back with it; until then it is the owner's, also when its owner's pods have it.
func testRuntimeClasses(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "runtimes")
	c, _ := p.consumer(t, carol, nil)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	classed := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.RuntimeClassName = &name }
	}
	classes := p.admin.NodeV1().RuntimeClasses()
	for name, labels := range map[string]map[string]string{"nvidia": nil, "sandbox": {policy.LentLabel: ""}} {
		if _, err := classes.Create(ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Handler: "runc"}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = classes.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}) }()
	}
	may := func(ctx context.Context, name string) error {
		_, err := c.CoreV1().Pods(twin).Create(ctx, bare("x", classed(name)), dry)
		return err
	}
	await.NoError(t, ctx, time.Minute, "the class that is lent", func() error { return may(ctx, "sandbox") })
	refusal := may(ctx, "nvidia")
	if !kept(refusal, "runtime class nvidia is not lent to other clusters") || !strings.Contains(refusal.Error(), "rivulet kubectl label runtimeclass nvidia rivulet.dev/lent=") {
		t.Errorf("a class of the owner's: %v, want it refused with a cure", refusal)
	}
	if _, err := p.admin.CoreV1().Pods(twin).Create(ctx, bare("x", classed("nvidia")), dry); !kept(err, "nvidia is not lent") {
		t.Errorf("by a controller: %v, want it refused", err)
	}
	if _, err := p.admin.CoreV1().Pods("default").Create(ctx, bare("x", classed("nvidia")), dry); err != nil {
		t.Errorf("the owner's own: %v", err)
	}
	label := func(value string) {
		t.Helper()
		if _, err := classes.Patch(ctx, "nvidia", types.MergePatchType, []byte(`{"metadata":{"labels":{"rivulet.dev/lent":`+value+`}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label(`""`)
	await.NoError(t, ctx, time.Minute, "lent as the cure says", func() error { return may(ctx, "nvidia") })
	label(`null`)
	await.True(t, time.Minute, "taken back", func() bool { return kept(may(ctx, "nvidia"), "not lent") })
	if err := may(ctx, "sandbox"); err != nil {
		t.Errorf("the other class is still lent: %v", err)
	}
	p.release(t, carol, "runtimes")
}

// owners is a volume of the owner's that is free.
func owners(name, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		StorageClassName: class, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/owners"}}}}
}

// asks is a claim of a class; "-" is none.
func asks(name, class string) *corev1.PersistentVolumeClaim {
	out := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}
	if class != "-" {
		out.Spec.StorageClassName = &class
	}
	return out
}

// A claim of a tenant names a class that is lent, and gets a volume that the class's provisioner has made for it: none that is free, by
// whatever name its class has, and whoever would bind it.
func testStorageClasses(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "classes")
	c, _ := p.consumer(t, carol, nil)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	claims, volumes := c.CoreV1().PersistentVolumeClaims(twin), p.admin.CoreV1().PersistentVolumes()
	for what, x := range map[string]struct{ claim *corev1.PersistentVolumeClaim }{
		"a class that is not there": {asks("x", "manual")}, "no class": {asks("x", "-")}, "the class of no name": {asks("x", "")},
	} {
		if _, err := claims.Create(ctx, x.claim, dry); !kept(err, "not lent to other clusters") || !strings.Contains(err.Error(), "rivulet kubectl label storageclass") {
			t.Errorf("%s: %v, want it refused with a cure", what, err)
		}
	}
	for key, value := range map[string]string{corev1.BetaStorageClassAnnotation: "manual", "volume.kubernetes.io/selected-node": "n", "volume.kubernetes.io/storage-provisioner": "x"} {
		claim := asks("x", ownClass)
		claim.Annotations = map[string]string{key: value}
		if _, err := claims.Create(ctx, claim, dry); !kept(err, "annotations of a claim") {
			t.Errorf("annotation %s: %v, want it refused", key, err)
		}
	}
	attributes := asks("x", ownClass)
	attributes.Spec.VolumeAttributesClassName = ptr.To("gold")
	if _, err := claims.Create(ctx, attributes, dry); !kept(err, "volume attributes classes") {
		t.Errorf("a class of attributes: %v, want it refused", err)
	}
	// What a controller makes of a pod's template.
	ephemeral := asks("x", "manual")
	if _, err := p.admin.CoreV1().PersistentVolumeClaims(twin).Create(ctx, ephemeral, dry); !kept(err, "storage class manual is not lent") {
		t.Errorf("by a controller: %v, want it refused", err)
	}

	// The owner's free volume of the class that is lent by itself stays free: the owner's own claim, made later, shows that volumes are bound.
	if _, err := volumes.Create(ctx, owners("owners-free", ownClass), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	data, err := claims.Create(ctx, asks("data", ownClass), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := volumes.Create(ctx, owners("owners-other", "manual"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, asks("own", "manual"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the owner's claim is bound", func() bool {
		got, err := p.admin.CoreV1().PersistentVolumeClaims("default").Get(ctx, "own", metav1.GetOptions{})
		return err == nil && got.Status.Phase == corev1.ClaimBound && got.Spec.VolumeName == "owners-other"
	})
	free, err := volumes.Get(ctx, "owners-free", metav1.GetOptions{})
	if err != nil || free.Spec.ClaimRef != nil {
		t.Errorf("the owner's free volume: %v, bound to %+v", err, free.Spec.ClaimRef)
	}
	bind := func(name string) error { // as the scheduler does
		_, err := volumes.Patch(ctx, name, types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"claimRef":{"apiVersion":"v1","kind":"PersistentVolumeClaim","namespace":%q,"name":"data","uid":%q}}}`, twin, data.UID)), metav1.PatchOptions{})
		return err
	}
	if err := bind("owners-free"); !kept(err, "was not made for the claim of another cluster") {
		t.Errorf("the scheduler binds the owner's volume: %v, want it refused", err)
	}
	if _, err := p.admin.CoreV1().PersistentVolumeClaims(twin).Patch(ctx, "data", types.MergePatchType, []byte(`{"spec":{"volumeName":"owners-free"}}`), metav1.PatchOptions{}); !kept(err, "was not made for this claim") {
		t.Errorf("the binder writes its name into the claim: %v, want it refused", err)
	}

	// One that a tenant has given up, as the owner makes it free again, is not the next one's.
	made := func(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		v := owners("pvc-"+string(data.UID), ownClass)
		v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "rivulet.dev/local-path"}
		v.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: twin, Name: "data", UID: data.UID}
		v.Spec.HostPath, v.Spec.Local = nil, &corev1.LocalVolumeSource{Path: "/volumes/" + twin + "_data_" + v.Name}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}}}}
		if change != nil {
			change(v)
		}
		return v
	}
	for what, change := range map[string]func(*corev1.PersistentVolume){
		"of another claim's name":         func(v *corev1.PersistentVolume) { v.Name = "pvc-12345678-1234-1234-1234-123456789012" },
		"of a claim by name alone":        func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" },
		"by no provisioner":               func(v *corev1.PersistentVolume) { v.Annotations = nil },
		"by another provisioner":          func(v *corev1.PersistentVolume) { v.Annotations["pv.kubernetes.io/provisioned-by"] = "example.com/x" },
		"of another class":                func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "manual" },
		"of another class by annotation":  func(v *corev1.PersistentVolume) { v.Annotations[corev1.BetaStorageClassAnnotation] = "manual" },
		"another folder":                  func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/etc" },
		"the folder of another namespace": func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/volumes/default_data_" + v.Name },
		"no folder": func(v *corev1.PersistentVolume) {
			v.Spec.Local, v.Spec.HostPath = nil, &corev1.HostPathVolumeSource{Path: "/volumes/" + twin + "_data_" + v.Name}
		},
	} {
		if _, err := volumes.Create(ctx, made(change), dry); !kept(err, "rivulet-twin-volumes") {
			t.Errorf("a volume %s: %v, want it refused", what, err)
		}
	}
	if _, err := volumes.Create(ctx, made(func(v *corev1.PersistentVolume) {
		v.Name, v.Spec.ClaimRef.Namespace, v.Spec.StorageClassName = "owners-own", "default", "manual"
	}), dry); err != nil {
		t.Errorf("a volume of the owner's own claim: %v", err)
	}
	if _, err := volumes.Create(ctx, made(nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound := func(name string) {
		t.Helper()
		await.True(t, time.Minute, "claim "+name+" is bound to what was made for it", func() bool {
			got, err := claims.Get(ctx, name, metav1.GetOptions{})
			return err == nil && got.Status.Phase == corev1.ClaimBound && got.Spec.VolumeName == "pvc-"+string(got.UID)
		})
	}
	bound("data")
	if _, err := claims.Patch(ctx, "data", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a bound claim, with the annotations of Kubernetes, is changed: %v", err)
	}

	// A class of another provisioner is lent by a label, with that provisioner; its volumes are not folders.
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "nas", Labels: map[string]string{policy.LentLabel: ""}}, Provisioner: "nas.example.com"}
	if _, err := p.admin.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, time.Minute, "the class is lent", func() error { _, err := claims.Create(ctx, asks("x", "nas"), dry); return err })
	if data, err = claims.Create(ctx, asks("shared", "nas"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	external := func(v *corev1.PersistentVolume) {
		v.Name, v.Spec.StorageClassName, v.Spec.ClaimRef.Name, v.Annotations["pv.kubernetes.io/provisioned-by"] = "pvc-"+string(data.UID), "nas", "shared", "nas.example.com"
		v.Spec.Local, v.Spec.NodeAffinity, v.Spec.CSI = nil, nil, &corev1.CSIPersistentVolumeSource{Driver: "nas.example.com", VolumeHandle: "1"}
	}
	if _, err := volumes.Create(ctx, made(func(v *corev1.PersistentVolume) {
		external(v)
		v.Annotations["pv.kubernetes.io/provisioned-by"] = "rivulet.dev/local-path"
	}), dry); !kept(err, "rivulet-twin-volumes") {
		t.Errorf("a volume of the class by another provisioner: %v, want it refused", err)
	}
	if _, err := volumes.Create(ctx, made(external), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound("shared")
	if err := p.admin.StorageV1().StorageClasses().Delete(ctx, "nas", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the class is lent no more", func() bool {
		_, err := claims.Create(ctx, asks("x", "nas"), dry)
		return kept(err, "not lent to other clusters")
	})
	bound("shared")

	if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if err := volumes.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	await.True(t, time.Minute, "the claims are gone", func() bool {
		left, err := claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0
	})
	if err := p.admin.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "own", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	p.release(t, carol, "classes")
}
