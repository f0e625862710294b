package stream

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pods answers /pods: those bound to the node, as stored at home.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	writePods(w, s.bound())
}

// runningPods answers /runningpods/ like a kubelet: only the running containers.
func (s *Server) runningPods(w http.ResponseWriter, _ *http.Request) {
	var out []*corev1.Pod
	for _, p := range s.bound() {
		short := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
			for i := range list {
				if list[i].State.Running != nil {
					short.Spec.Containers = append(short.Spec.Containers, corev1.Container{Name: list[i].Name, Image: list[i].Image})
				}
			}
		}
		if len(short.Spec.Containers) > 0 {
			out = append(out, short)
		}
	}
	writePods(w, out)
}

func (s *Server) bound() []*corev1.Pod {
	all := s.cfg.Pods.On(s.cfg.Node)
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: make([]corev1.Pod, 0, len(pods))}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&list) // the client is gone
}

// unknown answers requests about a kubelet's machine, which a virtual node does not have.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	http.Error(w, fmt.Sprintf("offload: %s is a virtual node and has no %s; it has /pods, /runningpods/, /stats/summary, /metrics, /metrics/cadvisor, /metrics/resource and /healthz",
		s.cfg.Node, r.URL.Path), http.StatusNotFound)
}
