package webconsole

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// kinds are the lists of an API server without objects.
var kinds = map[string]string{
	"pods": "Pod", "nodes": "Node", "namespaces": "Namespace", "persistentvolumes": "PersistentVolume", "storageclasses": "StorageClass", "ingressclasses": "IngressClass",
	"events": "Event", "replicasets": "ReplicaSet", "jobs": "Job", "services": "Service", "endpointslices": "EndpointSlice", "persistentvolumeclaims": "PersistentVolumeClaim",
	"ingresses": "Ingress", "networkpolicies": "NetworkPolicy", "resourcequotas": "ResourceQuota", "limitranges": "LimitRange", "configmaps": "ConfigMap", "secrets": "Secret",
	"poddisruptionbudgets": "PodDisruptionBudget", "statefulsets": "StatefulSet", "deployments": "Deployment", "daemonsets": "DaemonSet", "serviceaccounts": "ServiceAccount",
	"runtimeclasses": "RuntimeClass", "priorityclasses": "PriorityClass", "cronjobs": "CronJob", "replicationcontrollers": "ReplicationController",
}

// home is an API server with a few pods of a shop, one of which waits.
func home(t *testing.T) *rest.Config {
	t.Helper()
	made := metav1.NewTime(testNow.Add(-3 * 60 * 60 * 1e9))
	pod := func(name, node string, phase corev1.PodPhase, ready bool) corev1.Pod {
		p := corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: made}}
		p.Spec.NodeName, p.Status.Phase, p.Status.PodIP = node, phase, "10.42.0.7"
		p.Spec.Containers = []corev1.Container{{Name: "web", Image: "shop.example/web:<b>1</b>", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("300m")}}}}
		state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: made}}
		if !ready {
			state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "<script>alert(3)</script> no such image"}}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", Ready: ready, State: state, Image: "shop.example/web:1", RestartCount: 2}}
		return p
	}
	pods := []corev1.Pod{pod("web-1", "pi", corev1.PodRunning, true), pod("web-2", "lab-2", corev1.PodRunning, true), pod("broken", "pi", corev1.PodPending, false)}
	node := func(name string, labels map[string]string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	}
	objects := map[string]any{
		"pods":  pods,
		"nodes": []corev1.Node{node("pi", nil), node("lab-2", map[string]string{"rivulet.dev/virtual-node": "true", "rivulet.dev/target": "lab-2"})},
		"namespaces": []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, {ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"rivulet.dev/offload": "burst"}}}},
		"events": []corev1.Event{{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "shop"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "broken", Namespace: "shop"}, Type: "Warning", Reason: "Failed",
			Message: "pull of <img src=x onerror=alert(4)> failed", LastTimestamp: made, FirstTimestamp: made, Count: 3}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		w.Header().Set("Content-Type", "application/json")
		if n := len(parts); n > 1 && parts[n-2] == "pods" {
			for _, p := range pods {
				if p.Name == parts[n-1] {
					_ = json.NewEncoder(w).Encode(p)
					return
				}
			}
		}
		if n := len(parts); n > 2 && parts[n-1] == "log" {
			_, _ = w.Write([]byte("started <b>bold</b>\nlistens on 8080\n"))
			return
		}
		if n := len(parts); n == 4 && parts[n-2] == "namespaces" {
			for _, ns := range objects["namespaces"].([]corev1.Namespace) {
				if ns.Name == parts[n-1] {
					_ = json.NewEncoder(w).Encode(ns)
					return
				}
			}
		}
		last := parts[len(parts)-1]
		kind, ok := kinds[last]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404, Message: r.URL.Path})
			return
		}
		version := "v1"
		if parts[0] == "apis" {
			version = parts[1] + "/" + parts[2]
		}
		items := objects[last]
		if named, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); ok && last == "pods" {
			items = slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Name != named })
		}
		if items == nil {
			items = []any{}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": map[string]any{}, "items": items})
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL}
}
