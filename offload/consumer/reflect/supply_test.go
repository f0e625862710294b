package reflect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
)

// onlyWhatIsUsed: the target gets a Secret when a pod asks for it, has it as it is at home as long
// as one refers to it, and then no more; all others it never gets.
func onlyWhatIsUsed(t *testing.T, home, away kubernetes.Interface, pods *users, supply *Supply) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ref := func(name string) policy.Object {
		return policy.Object{Kind: policy.KindSecret, Namespace: "lab", Name: name}
	}
	there := func(name string) *corev1.Secret {
		s, err := away.CoreV1().Secrets("lab-a").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return s
	}
	create := func(name, value string, immutable bool) {
		t.Helper()
		_, err := home.CoreV1().Secrets("lab").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"k": []byte(value)}, Immutable: &immutable}, metav1.CreateOptions{})
		must(err)
	}
	// bring asks again as a pod does, and fails unless the Secret is there at once afterwards.
	bring := func(name, want string) {
		t.Helper()
		await.True(t, time.Minute, name+" is brought", func() bool {
			err := supply.Bring(ctx, []policy.Reference{{Object: ref(name)}, {Object: ref("nowhere"), Optional: true}, {Object: ref("not-yet")}})
			if err != nil && !errors.Is(err, target.ErrNotYet) {
				t.Fatal(err)
			}
			return err == nil
		})
		if s := there(name); s == nil || string(s.Data["k"]) != want {
			t.Fatalf("a pod is sent before Secret %s is as it is at home: %v", name, s)
		}
	}
	watch, err := away.CoreV1().Secrets("lab-a").Watch(ctx, metav1.ListOptions{})
	must(err)
	defer watch.Stop()
	drop := func(name string) {
		pods.set(ref(name), false)
		supply.Check(ref(name))
	}
	pods.mu.Lock()
	pods.others = false
	pods.mu.Unlock()

	// What the pod needs and does not leave home is told by name, with what to do; what is optional is not.
	_, err = home.CoreV1().Secrets("lab").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kept", Annotations: map[string]string{policy.ReflectAnnotation: policy.ReflectOff}}}, metav1.CreateOptions{})
	must(err)
	_, err = home.CoreV1().Secrets("lab").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "staying-token"}, Type: "bootstrap.kubernetes.io/token"}, metav1.CreateOptions{})
	must(err)
	for name, cure := range map[string]string{"kept": "annotate it rivulet.dev/reflect=on", "staying-token": "a projected serviceAccountToken volume"} {
		pods.set(ref(name), true)
		await.Empty(t, time.Minute, name+" does not leave home", func(ctx context.Context) string {
			err := supply.Bring(ctx, []policy.Reference{{Object: ref(name)}})
			if stays, ok := errors.AsType[*policy.StaysHomeError](err); !ok || stays.Object != ref(name) || !strings.Contains(err.Error(), cure) {
				return fmt.Sprint(err)
			}
			return ""
		})
		if err := supply.Bring(ctx, []policy.Reference{{Object: ref(name), Optional: true}}); err != nil {
			t.Errorf("optional %s: %v", name, err)
		}
	}
	root := policy.Object{Kind: policy.KindConfigMap, Namespace: "lab", Name: "kube-root-ca.crt"} // every cluster has its own
	await.True(t, time.Minute, "nobody waits for the cluster's own authority", func() bool {
		return supply.Bring(ctx, []policy.Reference{{Object: root}}) == nil
	})
	_, err = home.CoreV1().Secrets("lab").Patch(ctx, "kept", types.MergePatchType, []byte(`{"metadata":{"annotations":{"rivulet.dev/reflect":"on"}},"stringData":{"k":"0"}}`), metav1.PatchOptions{})
	must(err)
	await.True(t, time.Minute, "the cure is known", func() bool {
		_, stays := errors.AsType[*policy.StaysHomeError](supply.Bring(ctx, []policy.Reference{{Object: ref("kept")}}))
		return !stays
	})
	bring("kept", "0")
	must(home.CoreV1().Secrets("lab").Delete(ctx, "kept", metav1.DeleteOptions{}))
	await.True(t, time.Minute, "it goes with that at home", func() bool { return there("kept") == nil })

	create("unused", "u", false)
	create("pw", "1", false)
	pods.set(ref("pw"), true)
	bring("pw", "1")
	_, err = home.CoreV1().Secrets("lab").Patch(ctx, "pw", types.MergePatchType, []byte(`{"stringData":{"k":"2"}}`), metav1.PatchOptions{})
	must(err)
	await.True(t, time.Minute, "an edited one is edited away", func() bool { s := there("pw"); return s != nil && string(s.Data["k"]) == "2" })
	for range 5 { // a pod that is made again at once: what the cache has of the last one does not count
		drop("pw")
		await.True(t, time.Minute, "gone with the last pod", func() bool { return there("pw") == nil })
		pods.set(ref("pw"), true)
		bring("pw", "2")
	}
	drop("pw")

	create("frozen", "1", true)
	pods.set(ref("frozen"), true)
	bring("frozen", "1")
	must(home.CoreV1().Secrets("lab").Delete(ctx, "frozen", metav1.DeleteOptions{}))
	create("frozen", "2", true)
	await.True(t, time.Minute, "an immutable one that is made anew", func() bool { s := there("frozen"); return s != nil && string(s.Data["k"]) == "2" })
	drop("frozen")

	pods.set(ref("not-yet"), true)
	pods.set(ref("key"), true)
	bring("key", string([]byte{1})) // though there is no Secret not-yet
	create("not-yet", "1", false)
	await.True(t, time.Minute, "one that is made after its pod", func() bool { return there("not-yet") != nil })
	drop("not-yet")
	drop("key")
	await.True(t, time.Minute, "one that is annotated stays", func() bool { return there("not-yet") == nil && there("key") != nil })

	prefix := networkingv1.PathTypePrefix
	ingress, err := home.NetworkingV1().Ingresses("lab").Create(ctx, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "tls", Annotations: map[string]string{policy.ReflectAnnotation: "on"}},
		Spec: networkingv1.IngressSpec{TLS: []networkingv1.IngressTLS{{Hosts: []string{"x.example"}, SecretName: "pw"}}, Rules: []networkingv1.IngressRule{{Host: "x.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
			Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &prefix, Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}}}}}}}}}, metav1.CreateOptions{})
	must(err)
	await.True(t, time.Minute, "the certificate of an Ingress that follows", func() bool { return there("pw") != nil })
	must(home.NetworkingV1().Ingresses("lab").Delete(ctx, ingress.Name, metav1.DeleteOptions{}))
	await.True(t, time.Minute, "and goes with it", func() bool { return there("pw") == nil })

	if _, err := away.CoreV1().Secrets("lab-a").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "end"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range watch.ResultChan() {
		s, ok := e.Object.(*corev1.Secret)
		if !ok || s.Name == "unused" {
			t.Fatalf("the target was given what no pod refers to: %v", e.Object)
		}
		if s.Name == "end" {
			break
		}
	}
	pods.mu.Lock()
	pods.others, pods.named = true, nil
	pods.mu.Unlock()
	must(home.CoreV1().Secrets("lab").Delete(ctx, "unused", metav1.DeleteOptions{}))
	if apierrors.IsNotFound(home.CoreV1().Secrets("lab").Delete(ctx, "frozen", metav1.DeleteOptions{})) {
		t.Error("frozen is gone from home")
	}
}
