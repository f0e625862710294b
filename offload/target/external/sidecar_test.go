package external_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"

	"rivulet/offload/target/external/rewrite"
	"rivulet/test/harness/await"
)

// injected is what a service mesh adds to every pod: a container, a sidecar among the
// init containers, and marks of its own.
const injected = `[
{"op":"add","path":"/spec/containers/0","value":{"name":"mesh","image":"mesh","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}},"resources":{"requests":{"cpu":"5m","memory":"16Mi"}}}},
{"op":"add","path":"/spec/initContainers","value":[{"name":"proxy","image":"mesh","restartPolicy":"Always","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}},"resources":{"requests":{"cpu":"5m","memory":"16Mi"}}}]},
{"op":"add","path":"/metadata/labels/mesh.example~1injected","value":"true"},
{"op":"add","path":"/metadata/annotations/mesh.example~1revision","value":"1"}]`

// mesh is a real webhook of the campus.
func (c *campus) mesh(t *testing.T) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	must(t, err)
	pair, err := tls.X509KeyPair(certificate, key)
	must(t, err)
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: []byte(injected), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the asker has gone
	}))
	hook.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	hook.StartTLS()
	t.Cleanup(hook.Close)
	_, err = c.Client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mesh"},
		Webhooks: []admissionregv1.MutatingWebhook{{Name: "mesh.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregv1.SideEffectClassNone),
			FailurePolicy: ptr.To(admissionregv1.Fail), ClientConfig: admissionregv1.WebhookClientConfig{URL: ptr.To(hook.URL), CABundle: certificate},
			Rules: []admissionregv1.RuleWithOperations{{Operations: []admissionregv1.OperationType{admissionregv1.Create},
				Rule: admissionregv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}}}, metav1.CreateOptions{})
	must(t, err)
	await.Empty(t, 60*time.Second, "the webhook is asked", func(ctx context.Context) string {
		p, err := c.Client.CoreV1().Pods(shared).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "trial-", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
				Containers: []corev1.Container{{Name: "main", Image: "i", SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || len(p.Spec.Containers) != 2 {
			return fmt.Sprint(p.Spec.Containers, err)
		}
		return ""
	})
}

// sidecars: what the campus adds to a pod is its own affair; home has the containers
// that it asked for, by name, and the pod goes when it is deleted.
func sidecars(t *testing.T, h *home, c *campus) {
	ctx := t.Context()
	c.mesh(t)
	h.create(t, "meshed", corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "work"}, {Name: "second", Image: "work"}}})
	pod := h.away(t, "name=meshed")
	of := func(ctx context.Context) []corev1.Pod {
		list, err := c.Client.CoreV1().Pods(shared).List(ctx, metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + h.cluster() + ",away.rivulet.dev/name=meshed"})
		must(t, err)
		return list.Items
	}
	there := of(ctx)
	if len(there) != 1 || len(there[0].Status.ContainerStatuses) != 3 || there[0].Spec.Containers[0].Name != "mesh" || len(there[0].Spec.InitContainers) != 1 {
		t.Fatalf("nothing was injected: %+v", there)
	}
	var names []string
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		names = append(names, s.Name)
		if s.State.Running == nil || !s.Ready {
			t.Errorf("%s: %+v", s.Name, s.State)
		}
	}
	if got := strings.Join(names, " "); got != "main second" {
		t.Errorf("home has statuses of %s", got)
	}
	// As kubectl get prints it.
	raw, err := h.Client.CoreV1().RESTClient().Get().Resource("pods").Namespace("lab").Name("meshed").SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
	must(t, err)
	var table metav1.Table
	must(t, json.Unmarshal(raw, &table))
	if cells := table.Rows[0].Cells; cells[1] != "2/2" || cells[2] != "Running" {
		t.Errorf("kubectl get prints %v", cells)
	}
	if log, err := h.Client.CoreV1().Pods("lab").GetLogs("meshed", &corev1.PodLogOptions{Container: "second"}).DoRaw(ctx); err != nil || !strings.Contains(string(log), "/second ") {
		t.Errorf("the log of the second container: %q %v", log, err)
	}
	must(t, h.Client.CoreV1().Pods("lab").Delete(ctx, "meshed", metav1.DeleteOptions{}))
	await.Empty(t, 60*time.Second, "it is gone on both sides", func(ctx context.Context) string {
		if left := of(ctx); len(left) > 0 {
			return "there: " + left[0].Name
		}
		if _, err := h.Client.CoreV1().Pods("lab").Get(ctx, "meshed", metav1.GetOptions{}); err == nil {
			return "at home"
		}
		return ""
	})
}
