package hostile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// What a consumer's objects do to others' through the controllers that all share: the scheduler, kube-proxy, the binder of volumes, the
// runtime. The owner's pods start, its Services change and its volumes stay free, whatever the consumer writes.
func TestATenantsObjectsReachNothingOfOthers(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	p := consumer(t, ctx, "mallory", "10.77.0.79")
	twin := p.Twin(ctx, "lab")
	c := p.Kubernetes(ctx)
	run(t, ctx, c, twin, pod("plain"))
	refused := func(what string, err error, words string) {
		t.Helper()
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want it refused with %q", what, err, words)
		}
	}
	manifest := func(text string) {
		t.Helper()
		labtest.Must(t, ctx, victim, "sh", "-c", `printf %s "$1" | rivulet kubectl apply -f -`, "apply", text)
		t.Cleanup(func() {
			_, _ = victim.Run(ctx, "sh", "-c", `printf %s "$1" | rivulet kubectl delete --ignore-not-found --wait=false -f -`, "delete", text)
		})
	}

	// The scheduler: no pod of the owner's may run beside it.
	alone := pod("alone")
	alone.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, NamespaceSelector: &metav1.LabelSelector{}, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "owners-pod"}}}}}}
	_, err := c.CoreV1().Pods(twin).Create(ctx, alone, metav1.CreateOptions{})
	refused("anti-affinity over all namespaces", err, "spec.affinity.podAntiAffinity")
	own(t, ctx, victim, "owners-pod")
	// A taint of the owner's: a pod that tolerates everything stays off.
	node := strings.TrimSpace(labtest.Kubectl(t, ctx, victim, "get", "nodes", "-l", "!rivulet.dev/virtual-node", "-o", "jsonpath={.items[0].metadata.name}"))
	labtest.Kubectl(t, ctx, victim, "taint", "node", node, "kept=owner:NoSchedule")
	labtest.CleanUp(t, func(ctx context.Context) { _, _ = victim.Kubectl(ctx, "taint", "node", node, "kept:NoSchedule-") }) // if it is there still
	tolerant := pod("tolerant")
	tolerant.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if made, err := c.CoreV1().Pods(twin).Create(ctx, tolerant, metav1.CreateOptions{}); err != nil || len(made.Spec.Tolerations) != 2 {
		t.Errorf("a pod that tolerates everything: %v, it tolerates %v", err, made.Spec.Tolerations)
	}
	await.NoError(t, ctx, time.Minute, "the scheduler keeps it off the node", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, "tolerant", metav1.GetOptions{})
		if err == nil && (got.Spec.NodeName != "" || len(got.Status.Conditions) == 0 || got.Status.Conditions[0].Reason != corev1.PodReasonUnschedulable) {
			err = fmt.Errorf("on node %q: %+v", got.Spec.NodeName, got.Status.Conditions)
		}
		return err
	})
	labtest.Kubectl(t, ctx, victim, "taint", "node", node, "kept:NoSchedule-")
	gone(t, ctx, c, twin, "tolerant")

	// The runtime.
	manifest(`{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"owners"},"handler":"runc"}`)
	classed := pod("classed")
	classed.Spec.RuntimeClassName = ptr.To("owners")
	await.NoError(t, ctx, time.Minute, "the class is known, and not lent", func() error {
		if _, err = c.CoreV1().Pods(twin).Create(ctx, classed, metav1.CreateOptions{}); err != nil && strings.Contains(err.Error(), "runtime class owners is not lent") {
			return nil
		}
		return fmt.Errorf("%w", err)
	})

	// The binder of volumes: two of the owner's that are free, of a class that does not exist and of the one that is lent.
	for name, class := range map[string]string{"owners-manual": "manual", "owners-local": "local-path"} {
		manifest(`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"` + name + `"},"spec":{"capacity":{"storage":"64Mi"},"accessModes":["ReadWriteOnce"],` +
			`"persistentVolumeReclaimPolicy":"Retain","storageClassName":"` + class + `","hostPath":{"path":"/root"}}}`)
	}
	asked := func(class string) error {
		_, err := c.CoreV1().PersistentVolumeClaims(twin).Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}}}}, metav1.CreateOptions{})
		return err
	}
	refused("the class of the owner's volume", asked("manual"), "storage class manual is not lent")
	if err := asked("local-path"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods(twin).Create(ctx, withData("thief"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, ctx, 2*time.Minute, "the scheduler has tried to bind the owner's volume", func() error {
		out, err := victim.Kubectl(ctx, "get", "events", "-n", twin, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "was not made for the claim of another cluster") {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if out := labtest.Kubectl(t, ctx, victim, "get", "pv", "owners-manual", "owners-local", "-o", "jsonpath={.items[*].status.phase}"); strings.TrimSpace(out) != "Available Available" {
		t.Errorf("the owner's volumes are %q", out)
	}
	labtest.Kubectl(t, ctx, victim, "delete", "pv", "owners-local")
	await.NoError(t, ctx, 2*time.Minute, "the pod has a volume of its own", func() error {
		got, err := c.CoreV1().Pods(twin).Get(ctx, "thief", metav1.GetOptions{})
		if err == nil && got.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("%s %+v", got.Status.Phase, got.Status.Conditions)
		}
		return err
	})

	// kube-proxy: as much as it may have, and not more; a Service that the owner makes then is there soon.
	ports := func(s *corev1.Service) *corev1.Service {
		for i := range 32 {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
		}
		return s
	}
	slice := func(name string, endpoints int) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "many-" + strings.Split(name, "-")[1]}}, AddressType: discoveryv1.AddressTypeIPv4}
		for i := range 32 {
			port, called := int32(80+i), fmt.Sprint("p", i)
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &called, Port: &port})
		}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.42.0.%d", 1+i)}})
		}
		return s
	}
	_, err = c.DiscoveryV1().EndpointSlices(twin).Create(ctx, slice("x-0", 100), metav1.CreateOptions{})
	refused("100 endpoints with 32 ports", err, "1000 addresses at most, times its ports")
	made := 0
	for i := range 40 {
		if _, err = c.CoreV1().Services(twin).Create(ctx, ports(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("many-", i)}}), metav1.CreateOptions{}); err != nil {
			break
		}
		if _, err = c.DiscoveryV1().EndpointSlices(twin).Create(ctx, slice(fmt.Sprint("many-", i), 31), metav1.CreateOptions{}); err != nil {
			break
		}
		made++
	}
	if made < 15 || made > 20 {
		t.Errorf("%d slices of 992 were made, want as many as make 20,000", made)
	}
	refused("more endpoints in all", err, "ports and endpoints here")
	served := own(t, ctx, victim, "served")
	manifest(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"served"},"spec":{"selector":{"app":"served"},"ports":[{"port":80,"targetPort":8080}]}}`)
	ip := strings.TrimSpace(labtest.Kubectl(t, ctx, victim, "get", "service", "served", "-o", "jsonpath={.spec.clusterIP}"))
	took := await.NoError(t, ctx, time.Minute, "the owner's new Service leads to "+served.Status.PodIP, func() error {
		_, err := victim.Run(ctx, "curl", "-sS", "--noproxy", "*", "-m", "2", "-o", "/dev/null", "http://"+ip+"/")
		return err
	})
	t.Logf("the owner's Service took %s beside %d slices of 992", took, made)
}
