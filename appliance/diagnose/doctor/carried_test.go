package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// What was written for k3s and waits for something that there is not is named, with what there is instead, and
// the cures work.
func TestManifestsMadeForK3s(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t)
	ctx, api := t.Context(), server.Client
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e := machine(t, nil)
	e.api = func() (kubernetes.Interface, error) { return api, nil }
	look := func(what string, status Status, want ...string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, what, func() error {
			e.Now = time.Now
			r := manifestsOfK3s.Run(ctx, e.Env)
			if r.Status != status {
				return errors.New("it says " + r.Text)
			}
			for _, w := range want {
				if !strings.Contains(r.Text+" | "+r.Cure, w) {
					return errors.New(w + " is missing: " + r.Text + " | " + r.Cure)
				}
			}
			return nil
		})
	}
	look("nothing yet", Pass)

	class, wait := "fast", storagev1.VolumeBindingWaitForFirstConsumer
	check(api.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: k3sProvisioner, VolumeBindingMode: &wait}, metav1.CreateOptions{}))
	look("a class that nobody uses", Pass)
	check(api.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}, metav1.CreateOptions{}))
	look("its claim", Warn, "default/data", "provisioner: rivulet.dev/local-path")
	await.NoError(t, ctx, time.Minute, "a pod", func() error { // when the default account is there
		_, err := api.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{masterLabel: "true"}, Containers: []corev1.Container{{Name: "old", Image: "example.org/old:1"}},
		}}, metav1.CreateOptions{})
		return err
	})
	manifests := filepath.Join(server.TLSDir, "..", "manifests")
	check(nil, os.MkdirAll(manifests, 0o700))
	check(nil, os.MkdirAll(filepath.Dir(e.path(manifests)), 0o700))
	check(nil, os.Symlink(manifests, e.path(manifests))) // the server's folder on this machine
	chart := filepath.Join(manifests, "chart.yaml")
	helm := []byte("apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata:\n  name: web\n  namespace: kube-system\n")
	check(nil, os.WriteFile(chart, helm, 0o600))
	unread := e.path(k3sManifests)
	check(nil, os.MkdirAll(unread, 0o755))
	for _, f := range []string{"mine.yaml", "coredns.yaml"} {
		check(nil, os.WriteFile(filepath.Join(unread, f), nil, 0o644))
	}
	look("all of them", Warn, "default/data", "default/old", `node-role.kubernetes.io/control-plane: "true"`, "chart.yaml", "helm template", k3sManifests+"/mine.yaml;", "k3s/server/manifests;")

	check(nil, os.WriteFile(chart, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n  namespace: default\n"), 0o600))
	check(nil, os.Remove(filepath.Join(unread, "mine.yaml")))
	check(nil, api.CoreV1().Pods("default").Delete(ctx, "old", metav1.DeleteOptions{}))
	check(nil, api.CoreV1().PersistentVolumeClaims("default").Delete(ctx, "data", metav1.DeleteOptions{}))
	look("the cures have worked", Pass)

	check(nil, os.WriteFile(chart, helm, 0o600))
	look("the file again", Warn, "chart.yaml", "move it out of its folder")
	check(nil, os.Remove(chart))
	look("it is out of its folder", Pass)
}
