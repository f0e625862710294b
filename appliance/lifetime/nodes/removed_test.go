package nodes

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// A worker's name is in a certificate of the cluster's, so it is none by which somebody else is known.
func TestNamesOfWorkers(t *testing.T) {
	for wanted, want := range map[string]bool{"pi-3": true, "": false, "kubernetes": false, "kubernetes.default.svc": false, "localhost": false, "10.43.0.1": false, "Pi": false, "*": false, "a/b": false} {
		if usable(wanted) != want {
			t.Errorf("%q: %t, want %t", wanted, !want, want)
		}
	}
}

// Of a worker that was removed nothing is left: its Node, its password, its volumes, whether claims have them or not; nor
// of a node that it has made under another name. What is of others stays, also where it has registered under the name of
// a virtual node, and volumes of a name that was this device's.
func (c *cluster) testRemoved(t *testing.T) {
	ctx := t.Context()
	secrets, volumes, claims := c.Client.CoreV1().Secrets(metav1.NamespaceSystem), c.Client.CoreV1().PersistentVolumes(), c.Client.CoreV1().PersistentVolumeClaims("default")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	virtual := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Labels: map[string]string{policy.VirtualNodeLabel: "b"}}, Spec: corev1.NodeSpec{ProviderID: "rivulet://b"}}
	_, err := c.Client.CoreV1().Nodes().Create(ctx, virtual, metav1.CreateOptions{})
	must(err)
	for _, name := range []string{"gone", "ghost", "stays"} {
		c.putNode(t, c.Client, name)
	}
	for _, name := range []string{"gone", "ghost", "stays", "b"} {
		_, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + passwordSuffix}, Type: passwordType, Data: map[string][]byte{"hash": {1}}}, metav1.CreateOptions{})
		must(err)
	}
	class := "local-path"
	for _, name := range []string{"gone", "ghost", "stays"} {
		claim, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "of-" + name}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pvc-bound-" + name,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}, metav1.CreateOptions{})
		must(err)
		bound, free := volumeOn(name, "default", "bound-"+name), volumeOn(name, "default", "free-"+name)
		bound.Spec.ClaimRef.Name, bound.Spec.ClaimRef.UID, bound.Spec.StorageClassName = claim.Name, claim.UID, class
		for _, v := range []*corev1.PersistentVolume{bound, free} {
			_, err := volumes.Create(ctx, v, metav1.CreateOptions{})
			must(err)
		}
		await.NoError(t, ctx, time.Minute, "the claim has its volume", func() error {
			got, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
			if err == nil && got.Status.Phase != corev1.ClaimBound {
				err = errors.New(string(got.Status.Phase))
			}
			return err
		})
	}

	names, err := registered(ctx, c.Client)
	must(err)
	for _, name := range []string{"gone", "ghost", "stays", "b"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s has registered, and is not among %q", name, names)
		}
	}
	for range 2 { // it may be cut off at any step, and begins again
		must(dropVolumes(ctx, c.Client, "gone", slog.New(slog.DiscardHandler)))
		for _, name := range []string{"gone", "ghost", "b"} {
			must(forget(ctx, c.Client, name, slog.New(slog.DiscardHandler)))
		}
	}
	for _, name := range []string{"gone", "ghost", "stays", "b"} {
		_, node := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		_, password := secrets.Get(ctx, name+passwordSuffix, metav1.GetOptions{})
		if stays := name == "stays"; apierrors.IsNotFound(password) == stays || apierrors.IsNotFound(node) == (stays || name == "b") {
			t.Errorf("%s: its Node: %v, its password: %v", name, node, password)
		}
	}
	for _, name := range []string{"gone", "ghost", "stays"} {
		for _, of := range []string{"pvc-bound-", "pvc-free-"} {
			if _, err := volumes.Get(ctx, of+name, metav1.GetOptions{}); apierrors.IsNotFound(err) != (name == "gone") {
				t.Errorf("volume %s%s: %v", of, name, err)
			}
		}
	}
	await.NoError(t, ctx, time.Minute, "the claim of its volume is lost", func() error {
		got, err := claims.Get(ctx, "of-gone", metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.ClaimLost {
			err = errors.New(string(got.Status.Phase))
		}
		return err
	})
}
