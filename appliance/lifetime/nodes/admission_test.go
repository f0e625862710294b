package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/appliance/addons/volumes"
	"rivulet/appliance/health"
	"rivulet/offload/apiproxy"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/tree"
)

// cluster is an API server with what bounds its workers: w and x; its server is pi.
type cluster struct {
	*apiserver.Server
	// worker is the supervisor of w, kubelet its kubelet.
	worker, kubelet kubernetes.Interface
}

// What a worker may write of the cluster is what its own pods and its own disk need.
func TestAWorkerAgainstAPIServer(t *testing.T) {
	c := &cluster{Server: apiserver.Start(t)}
	c.worker = c.as(t, "rivulet:node:w", group)
	c.kubelet = c.as(t, "system:node:w", "system:nodes")
	c.apply(t, admission)
	for _, file := range []string{"appliance/engine/manifests/rivulet-engine.yaml", "offload/provider/tenancy/admission.yaml"} {
		text, err := os.ReadFile(tree.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		c.apply(t, text)
	}
	t.Run("volumes", c.testVolumes)
	t.Run("claims and events", c.testClaimsAndEvents)
	t.Run("its provisioner", c.testProvisioner)
	t.Run("ranges of nodes", c.testRanges)
	t.Run("marks of nodes", c.testMarks)
	t.Run("images of mirror pods", c.testMirrorPods)
	t.Run("what a removed worker leaves", c.testRemoved)
}

func (c *cluster) apply(t *testing.T, manifests []byte) {
	t.Helper()
	if err := policy.Apply(t.Context(), c.Config, manifests); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) as(t *testing.T, user, group string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{group, "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// refused fails the test unless the write is refused, once the API server follows its policies, for what why contains.
func refused(t *testing.T, what, why string, write func() error) {
	t.Helper()
	await.NoError(t, t.Context(), 30*time.Second, what, func() error {
		if err := write(); err == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), why) {
			return fmt.Errorf("%w, want it refused for %q", err, why)
		}
		return nil
	})
}

var (
	dryCreate = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	dryUpdate = metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}
	dryDelete = metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
)

// volumeOn is what the provisioner of a node makes for a claim that is gone.
func volumeOn(node, namespace, uid string) *corev1.PersistentVolume {
	class := volumes.ClassName
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "data", UID: types.UID(uid)}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	return volumes.NewLocal("/var/lib/rivulet/storage", node).Volume(claim, nil, "pvc-"+uid)
}

func affinity(v *corev1.PersistentVolume) *corev1.NodeSelectorRequirement {
	return &v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
}

func (c *cluster) testVolumes(t *testing.T) {
	ctx, api, admins := t.Context(), c.worker.CoreV1().PersistentVolumes(), c.Client.CoreV1().PersistentVolumes()
	for name, provisioner := range map[string]string{"nas": "nas.example.com", "kept": volumes.Provisioner} {
		if _, err := c.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "twin", Labels: map[string]string{policy.OriginLabel: "alice"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const disk, folder, marks, twins = "no folder on the disk", "in a folder of its own", "no labels, owners", "rivulet-twin-volumes"
	hostPath := func(v *corev1.PersistentVolume, path string) {
		v.Spec.Local, v.Spec.HostPath = nil, &corev1.HostPathVolumeSource{Path: path}
	}
	for _, row := range []struct {
		what, why string
		change    func(v *corev1.PersistentVolume)
	}{
		{"a path of the server's", disk, func(v *corev1.PersistentVolume) { hostPath(v, "/root"); affinity(v).Values = []string{"pi"} }},
		{"a path of the server's, for a twin", "denied request", func(v *corev1.PersistentVolume) {
			hostPath(v, "/root")
			affinity(v).Values, v.Spec.ClaimRef.Namespace = []string{"pi"}, "twin"
		}},
		{"a path of its own", disk, func(v *corev1.PersistentVolume) { hostPath(v, "/var/lib/rivulet/storage/lab_data_"+v.Name) }},
		{"a path of no node", disk, func(v *corev1.PersistentVolume) { hostPath(v, "/root"); v.Spec.NodeAffinity = nil }},
		{"of another file system", disk, func(v *corev1.PersistentVolume) {
			v.Spec.Local, v.Spec.NFS = nil, &corev1.NFSVolumeSource{Server: "a", Path: "/"}
		}},
		{"on the server", disk, func(v *corev1.PersistentVolume) { affinity(v).Values = []string{"pi"} }},
		{"on two nodes", disk, func(v *corev1.PersistentVolume) { affinity(v).Values = []string{"w", "pi"} }},
		{"on others than itself", disk, func(v *corev1.PersistentVolume) { affinity(v).Operator = corev1.NodeSelectorOpNotIn }},
		{"where another label says", disk, func(v *corev1.PersistentVolume) { affinity(v).Key = "disk" }},
		{"on any of two", disk, func(v *corev1.PersistentVolume) {
			r := v.Spec.NodeAffinity.Required
			r.NodeSelectorTerms = append(r.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}})
		}},
		{"by another provisioner", disk, func(v *corev1.PersistentVolume) { v.Annotations["pv.kubernetes.io/provisioned-by"] = "x" }},
		{"another folder", folder, func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/root" }},
		{"beside the volumes", folder, func(v *corev1.PersistentVolume) { v.Spec.Local.Path = "/var/lib/rivulet/lab_data_" + v.Name }},
		{"the folder of another namespace", folder, func(v *corev1.PersistentVolume) {
			v.Spec.Local.Path = "/var/lib/rivulet/storage/other_data_" + v.Name
		}},
		{"the folder of another volume", folder, func(v *corev1.PersistentVolume) { v.Spec.Local.Path += "0" }},
		{"for no claim", folder, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }},
		{"for any claim of a name", folder, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "" }},
		{"for a claim that it is not named after", folder, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "u2" }},
		{"of no class", folder, func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "" }},
		{"with a label", marks, func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"rivulet.dev/away-on": "alice"} }},
		{"as one that is moved", marks, func(v *corev1.PersistentVolume) { v.Annotations["rivulet.dev/move"] = "{}" }},
		{"with a finalizer", marks, func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "example.com/x") }},
		{"for a twin, of a class that is not lent", twins, func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef.Namespace, v.Spec.StorageClassName, v.Spec.Local.Path = "twin", "kept", "/var/lib/rivulet/storage/twin_data_"+v.Name
		}},
	} {
		v := volumeOn("w", "lab", "u1")
		row.change(v)
		refused(t, "a volume "+row.what, row.why, func() error { _, err := api.Create(ctx, v, dryCreate); return err })
	}
	for _, v := range []*corev1.PersistentVolume{volumeOn("w", "lab", "u1"), volumeOn("w", "twin", "u1")} {
		if _, err := api.Create(ctx, v, dryCreate); err != nil {
			t.Errorf("its own volume for %s: %v", v.Spec.ClaimRef.Namespace, err)
		}
	}
	kept := volumeOn("w", "lab", "u1")
	kept.Spec.StorageClassName = "kept"
	if _, err := api.Create(ctx, kept, dryCreate); err != nil {
		t.Errorf("a volume of another class of its provisioner: %v", err)
	}

	// Those that are there. Kubernetes finds their claims gone.
	have := map[string]*corev1.PersistentVolume{}
	for _, node := range []string{"w", "x", "pi"} {
		v, err := admins.Create(ctx, volumeOn(node, "lab", "of-"+node), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		await.NoError(t, ctx, time.Minute, "the volume of "+node+" is released", func() (err error) {
			if have[node], err = admins.Get(ctx, v.Name, metav1.GetOptions{}); err == nil && have[node].Status.Phase != corev1.VolumeReleased {
				err = errors.New(string(have[node].Status.Phase))
			}
			return err
		})
	}
	grow := func(v *corev1.PersistentVolume) { v.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi") }
	letGo := func(v *corev1.PersistentVolume) {
		v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == "rivulet.dev/local-path" })
	}
	const size, gone = "nothing but the size", "cannot delete"
	for _, row := range []struct {
		of, what, why string
		change        func(v *corev1.PersistentVolume)
	}{
		{"w", "grows", "", grow},
		{"w", "is let go", "", letGo},
		{"w", "is another claim's", size, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "other" }},
		{"w", "is any claim's", size, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }},
		{"w", "is kept", size, func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}},
		{"w", "has another class", size, func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "nas" }},
		{"w", "has a label", size, func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"a": "b"} }},
		{"w", "is moved", size, func(v *corev1.PersistentVolume) { v.Annotations["rivulet.dev/move"] = "{}" }},
		{"w", "is of no provisioner", disk, func(v *corev1.PersistentVolume) { v.Annotations = nil }},
		{"w", "is held by a finalizer", size, func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "example.com/x") }},
		{"w", "is let go while it is used", size, func(v *corev1.PersistentVolume) { v.Finalizers = nil }},
		{"x", "grows", disk, grow},
		{"x", "is let go", disk, letGo},
		{"pi", "grows", disk, grow},
		{"pi", "is let go", disk, letGo},
		{"pi", "is another claim's", disk, func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = "other" }},
	} {
		v := have[row.of].DeepCopy()
		row.change(v)
		write := func() error { _, err := api.Update(ctx, v, dryUpdate); return err }
		if row.why != "" {
			refused(t, "the volume of "+row.of+" "+row.what, row.why, write)
		} else if err := write(); err != nil {
			t.Errorf("the volume of %s %s: %v", row.of, row.what, err)
		}
	}
	for _, of := range []string{"w", "x", "pi"} { // the server marks them
		refused(t, "the volume of "+of+" is deleted", gone, func() error { return api.Delete(ctx, have[of].Name, dryDelete) })
		refused(t, "the volume of "+of+" is patched", "cannot patch", func() error {
			_, err := api.Patch(ctx, have[of].Name, types.MergePatchType, []byte(`{"spec":{"capacity":{"storage":"3Gi"}}}`), metav1.PatchOptions{})
			return err
		})
	}
	refused(t, "all volumes are deleted", "cannot deletecollection", func() error {
		return api.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	v := have["w"].DeepCopy()
	v.Status.Phase = corev1.VolumeAvailable
	refused(t, "a volume has another state", "cannot update", func() error { _, err := api.UpdateStatus(ctx, v, dryUpdate); return err })
	free := volumeOn("w", "lab", "never") // its claim may yet come
	free.Name, free.Spec.ClaimRef.UID = "free", ""
	if _, err := admins.Create(ctx, free, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused(t, "a volume is deleted that waits for its claim", gone, func() error { return api.Delete(ctx, "free", dryDelete) })
}

func (c *cluster) testClaimsAndEvents(t *testing.T) {
	ctx := t.Context()
	class := "kept"
	claim := func(name, node string) *corev1.PersistentVolumeClaim {
		out, err := c.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": volumes.Provisioner, "volume.kubernetes.io/selected-node": node}},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	api := c.worker.CoreV1().PersistentVolumeClaims("default")
	on := map[string]*corev1.PersistentVolumeClaim{"w": claim("on-w", "w"), "x": claim("on-x", "x")}
	for of, one := range on {
		refused(t, "the claim of "+of+" is changed", "cannot update", func() error { _, err := api.Update(ctx, one, dryUpdate); return err })
		refused(t, "the state of the claim of "+of+", which has no volume", "is not on node", func() error {
			one.Status.Phase = corev1.ClaimBound
			_, err := api.UpdateStatus(ctx, one, dryUpdate)
			return err
		})
	}
	event := func(host string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "of-" + host, Namespace: "default"}, Reason: "x", Source: corev1.EventSource{Host: host},
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolume", Name: "v"}}
	}
	events := c.worker.CoreV1().Events("default")
	refused(t, "an event of the server's", "no events of others", func() error { _, err := events.Create(ctx, event("pi"), dryCreate); return err })
	if _, err := events.Create(ctx, event("w"), dryCreate); err != nil {
		t.Errorf("its own event: %v", err)
	}
	pis, err := c.Client.CoreV1().Events("default").Create(ctx, event("pi"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pis.Source.Host = "w"
	refused(t, "an event of the server's is taken", "no events of others", func() error { _, err := events.Update(ctx, pis, dryUpdate); return err })
}

// through is a client of a worker's supervisor, by the route that the server has for it.
func (c *cluster) through(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	proxy, err := apiproxy.New(c.Config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Device: New(&Device{Name: func() string { return "pi" }}), client: c.Client, proxy: proxy}
	route := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.passAPI(w, r, node, r.URL.Path) }))
	t.Cleanup(func() { route.CloseClientConnections(); route.Close(); proxy.Close() })
	client, err := kubernetes.NewForConfig(&rest.Config{Host: route.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A volume draws the pods of its claim to its node: a worker makes one only if the scheduler has chosen it.
func (c *cluster) testClaimsOfOthers(t *testing.T, through kubernetes.Interface) {
	ctx, claims := t.Context(), c.Client.CoreV1().PersistentVolumeClaims("default")
	for name, row := range map[string]struct {
		class, node string
		change      func(*corev1.PersistentVolume)
	}{
		"of-another-worker": {volumes.ClassName, "x", func(*corev1.PersistentVolume) {}},
		"of-no-node-yet":    {volumes.ClassName, "", func(*corev1.PersistentVolume) {}},
		"of-the-nas":        {"nas", "w", func(*corev1.PersistentVolume) {}},
		"of-no-such-class":  {"manual", "w", func(*corev1.PersistentVolume) {}},
		"as-another-class":  {"manual", "w", func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = volumes.ClassName }},
		"that-was-another":  {"kept", "w", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "u1" }},
		"that-is-not-there": {"kept", "w", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Name = "gone" }},
		"for-no-claim":      {"kept", "w", func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }},
		"too-large":         {"kept", "w", func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"a": strings.Repeat("x", maxVolume)} }},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &row.class,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
		if row.node != "" && row.class != "kept" {
			claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": row.node}
		}
		claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		v := volumeOn("w", "default", string(claim.UID))
		v.Spec.StorageClassName, v.Spec.ClaimRef.Name = row.class, name
		row.change(v)
		_, err = through.CoreV1().PersistentVolumes().Create(ctx, v, dryCreate)
		if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			t.Errorf("a volume for a claim %s: %v, want it refused", name, err)
		}
		if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Nor does a number that nobody can count hold the supervisor.
	costly := []byte(`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"v"},"spec":{"capacity":{"storage":"1e999999999"},"claimRef":{"namespace":"default","name":"x"}}}`)
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := through.CoreV1().RESTClient().Post().Resource("persistentvolumes").SetHeader("Content-Type", "application/json").Body(costly).Do(within).Error()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the volume: ") {
		t.Errorf("a volume of a size of a billion digits: %v, want it refused", err)
	}
}

// Within these bounds the worker's provisioner does all that it has to.
func (c *cluster) testProvisioner(t *testing.T) {
	ctx := t.Context()
	through := c.through(t, "w")
	for node, client := range map[string]kubernetes.Interface{"pi": c.Client, "w": through} {
		running, stop := context.WithCancel(ctx)
		done, ready := make(chan error, 1), make(chan struct{})
		local := volumes.NewLocal(t.TempDir()+"/storage", node)
		go func() {
			done <- volumes.New(volumes.Config{Client: client, Local: local, Worker: node == "w", Health: &health.Tracker{}, Log: slog.New(slog.DiscardHandler)}).Run(running, func() { close(ready) })
		}()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Errorf("provisioner of %s: %v", node, err)
			}
		})
		select {
		case <-ready:
		case <-time.After(time.Minute):
			t.Fatal("the provisioner does not start")
		}
		if _, err := c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	class := volumes.ClassName
	claims := c.Client.CoreV1().PersistentVolumeClaims("default")
	c.testClaimsOfOthers(t, through)
	claim, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{"volume.kubernetes.io/selected-node": "w"}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := func(size string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "the claim has "+size, func() (err error) {
			if claim, err = claims.Get(ctx, "data", metav1.GetOptions{}); err != nil {
				return err
			}
			if q := claim.Status.Capacity[corev1.ResourceStorage]; claim.Status.Phase != corev1.ClaimBound || q.String() != size {
				return fmt.Errorf("%s, %s", claim.Status.Phase, q.String())
			}
			return nil
		})
	}
	has("1Mi")
	api := c.worker.CoreV1().PersistentVolumes()
	refused(t, "the volume of a claim is deleted", "cannot delete", func() error { return api.Delete(ctx, claim.Spec.VolumeName, dryDelete) })
	status := c.worker.CoreV1().PersistentVolumeClaims("default")
	refused(t, "a claim is larger than it asks for", "nothing of a claim but its size", func() error {
		more := claim.DeepCopy()
		more.Status.Capacity[corev1.ResourceStorage] = resource.MustParse("1Gi")
		_, err := status.UpdateStatus(ctx, more, dryUpdate)
		return err
	})
	refused(t, "a claim has another label", "nothing of a claim but its size", func() error {
		more := claim.DeepCopy()
		more.Labels = map[string]string{"a": "b"}
		_, err := status.UpdateStatus(ctx, more, dryUpdate)
		return err
	})
	another := c.as(t, "rivulet:node:x", group).CoreV1().PersistentVolumeClaims("default")
	refused(t, "another worker writes the claim", "is not on node x", func() error { _, err := another.UpdateStatus(ctx, claim, dryUpdate); return err })

	if _, err := claims.Patch(ctx, "data", types.MergePatchType, []byte(`{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	has("2Mi")
	events, err := c.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "source=" + volumes.Provisioner})
	if err != nil || len(events.Items) == 0 {
		t.Errorf("no event of the provisioner: %v", err)
	}
	if err := claims.Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, "the volume is gone with its claim", func() bool {
		_, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// putNode makes a Node as its kubelet does, without what the test does not need.
func (c *cluster) putNode(t *testing.T, as kubernetes.Interface, name string) *corev1.Node {
	t.Helper()
	n, err := as.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		n, err = c.Client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The cluster gives a node its range, and no worker changes that: not of its own Node, nor of another one.
func (c *cluster) testRanges(t *testing.T) {
	ctx, api := t.Context(), c.kubelet.CoreV1().Nodes()
	const chosen = "is chosen by the cluster"
	c.putNode(t, c.Client, "x")
	for _, cidr := range []string{"10.42.0.0/24", "10.42.200.0/24", "10.42.0.0/17"} {
		refused(t, "a Node with a range of its own choice", chosen, func() error {
			_, err := c.as(t, "system:node:y", "system:nodes").CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "y"},
				Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}}}, dryCreate)
			return err
		})
	}
	c.putNode(t, c.kubelet, "w")
	var has string
	await.True(t, time.Minute, "the cluster gives a range", func() bool {
		n, err := api.Get(ctx, "w", metav1.GetOptions{})
		if err == nil {
			has = n.Spec.PodCIDR
		}
		return has != ""
	})
	for _, sub := range [][]string{nil, {"status"}} {
		_, err := api.Patch(ctx, "w", types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.42.99.0/24","podCIDRs":["10.42.99.0/24"]}}`), metav1.PatchOptions{}, sub...)
		n, got := api.Get(ctx, "w", metav1.GetOptions{})
		if got != nil || n.Spec.PodCIDR != has || sub == nil && err == nil { // the state of a Node has no range
			t.Errorf("nodes %v: its range is %s, was %s: %v, %v", sub, n.Spec.PodCIDR, has, err, got)
		}
	}
	refused(t, "another node's range", "not allowed to modify node", func() error {
		_, err := api.Patch(ctx, "x", types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.42.9.0/24"}}`), metav1.PatchOptions{})
		return err
	})
	refused(t, "by its supervisor", "cannot patch", func() error {
		_, err := c.worker.CoreV1().Nodes().Patch(ctx, "w", types.MergePatchType, []byte(`{"spec":{"podCIDR":"10.42.9.0/24"}}`), metav1.PatchOptions{})
		return err
	})
	if _, err := api.Patch(ctx, "w", types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("what a kubelet writes all the time: %v", err)
	}
}

// What Rivulet reads in a Node is not its kubelet's to write: when it makes the Node, later, by its state.
func (c *cluster) testMarks(t *testing.T) {
	ctx, api := t.Context(), c.kubelet.CoreV1().Nodes()
	const virtual, label, annotation, taint, host = "a virtual node is the server's", "labels rivulet.dev", "annotations rivulet.dev", "taints rivulet.dev", "kubernetes.io/hostname"
	fresh := c.as(t, "system:node:y", "system:nodes").CoreV1().Nodes()
	for _, row := range []struct {
		what, why string
		node      corev1.Node
	}{
		{"that is a peer's", label, corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{policy.VirtualNodeLabel: "alice"}}}},
		{"with a virtual node's provider ID", virtual, corev1.Node{Spec: corev1.NodeSpec{ProviderID: "rivulet://alice"}}},
		{"that isolates", label, corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{policy.WorkerLabel: policy.WorkerIsolates}}}},
		{"of a name below", label, corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a.rivulet.dev/b": "c"}}}},
		{"with an annotation", annotation, corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"rivulet.dev/a": "b"}}}},
		{"with a taint", taint, corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: policy.VirtualTaint, Effect: corev1.TaintEffectNoSchedule}}}}},
		{"with the server's volumes", host, corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelHostname: "pi"}}}},
		{"as k3s makes it", "", corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{policy.WorkerLabel: policy.WorkerPlain, corev1.LabelHostname: "y"}},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}}}},
	} {
		row.node.Name = "y"
		write := func() error { _, err := fresh.Create(ctx, &row.node, dryCreate); return err }
		if row.why != "" {
			refused(t, "a Node "+row.what, row.why, write)
		} else if err := write(); err != nil {
			t.Errorf("a Node %s: %v", row.what, err)
		}
	}

	c.putNode(t, c.kubelet, "w")
	marks := `{"metadata":{"labels":{"rivulet.dev/worker":"isolates","rivulet.dev/x":"y"},"annotations":{"rivulet.dev/x":"y"}}}`
	if _, err := c.Client.CoreV1().Nodes().Patch(ctx, "w", types.MergePatchType, []byte(marks), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	dry := metav1.PatchOptions{DryRun: dryCreate.DryRun}
	for _, sub := range [][]string{nil, {"status"}} {
		for _, row := range []struct{ patch, why string }{
			{`{"metadata":{"labels":{"rivulet.dev/virtual-node":"alice"}}}`, label},
			{`{"metadata":{"labels":{"rivulet.dev/x":"z"}}}`, label},
			{`{"metadata":{"labels":{"rivulet.dev/x":null}}}`, label},
			{`{"metadata":{"labels":{"rivulet.dev/worker":null}}}`, label},
			{`{"metadata":{"labels":{"rivulet.dev/worker":"x"}}}`, label},
			{`{"metadata":{"labels":{"kubernetes.io/hostname":"pi"}}}`, host},
			{`{"metadata":{"annotations":{"rivulet.dev/x":null}}}`, annotation},
			{`{"metadata":{"annotations":{"rivulet.dev/z":"z"}}}`, annotation},
			{`{"metadata":{"labels":{"rivulet.dev/worker":"true","kubernetes.io/hostname":"w"},"annotations":{"k3s.io/node-args":"[]"}}}`, ""},
		} {
			write := func() error {
				_, err := api.Patch(ctx, "w", types.MergePatchType, []byte(row.patch), dry, sub...)
				return err
			}
			if row.why != "" {
				refused(t, fmt.Sprint(sub, row.patch), row.why, write)
			} else if err := write(); err != nil {
				t.Errorf("%v %s: %v", sub, row.patch, err)
			}
		}
	}
	for what, patch := range map[string]string{"a provider ID": `{"spec":{"providerID":"rivulet://alice"}}`, "a taint": `{"spec":{"taints":[{"key":"rivulet.dev/away","effect":"NoSchedule"}]}}`} {
		refused(t, what, "", func() error { _, err := api.Patch(ctx, "w", types.MergePatchType, []byte(patch), dry); return err })
	}

	// A kubelet of the name of a virtual node does not become that.
	alices := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alice", Labels: map[string]string{policy.VirtualNodeLabel: "alice"}}, Spec: corev1.NodeSpec{ProviderID: "rivulet://alice"}}
	if _, err := c.Client.CoreV1().Nodes().Create(ctx, alices, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ready := `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`
	refused(t, "a virtual node's state", virtual, func() error {
		_, err := c.as(t, "system:node:alice", "system:nodes").CoreV1().Nodes().Patch(ctx, "alice", types.MergePatchType, []byte(ready), dry, "status")
		return err
	})
	for user, of := range map[string]string{"system:k3s-controller": "system:authenticated", "rivulet:node:w": group} {
		refused(t, user+" changes a Node", "cannot patch", func() error {
			_, err := c.as(t, user, of).CoreV1().Nodes().Patch(ctx, "w", types.MergePatchType, []byte(ready), dry, "status")
			return err
		})
	}
}

// A worker gets the images of pods that the server has bound to it, and none that its kubelet names.
func (c *cluster) testMirrorPods(t *testing.T) {
	ctx, pods, as := t.Context(), c.Client.CoreV1().Pods("default"), c.kubelet.CoreV1().Pods("default")
	own := c.putNode(t, c.kubelet, "w")
	pod := func(name string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "c", Image: "of/" + name}}}}
		change(p)
		return p
	}
	if _, err := pods.Create(ctx, pod("bound", func(*corev1.Pod) {}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Target: corev1.ObjectReference{Kind: "Node", Name: "w"}}
	refused(t, "its kubelet binds a pod", "cannot create", func() error { return as.Bind(ctx, bind, metav1.CreateOptions{}) })
	if err := pods.Bind(ctx, bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	yes := true
	here := func(p *corev1.Pod) {
		p.Spec.NodeName = "w"
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "w", UID: own.UID, Controller: &yes}}
	}
	refused(t, "its kubelet makes a pod", "can only create mirror pods", func() error { _, err := as.Create(ctx, pod("plain", here), metav1.CreateOptions{}); return err })
	mirror := pod("mirror", func(p *corev1.Pod) {
		here(p)
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	})
	if _, err := as.Create(ctx, mirror, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused(t, "a mirror pod becomes another one", "mirror pod", func() error {
		_, err := as.Patch(ctx, "mirror", types.MergePatchType, []byte(`{"metadata":{"annotations":{"kubernetes.io/config.mirror":null}}}`), metav1.PatchOptions{}, "status")
		return err
	})
	if got := imagesOf(ctx, c.Client, "w"); len(got) != 1 || got[0].Image != "of/bound" {
		t.Errorf("%q", got)
	}
}
