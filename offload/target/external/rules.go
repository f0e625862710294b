package external

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rivulet/offload/foreign"
	"rivulet/offload/target/external/rewrite"
)

// state are the requirements and limits of the namespace, as read.
type state struct {
	quotas []corev1.ResourceQuota
	limits []corev1.LimitRange
	own    corev1.ResourceList            // requests of home's pods
	ownBy  map[string]corev1.ResourceList // the same by target architecture
	// security is the enforced Pod Security level; empty if unknown.
	security string
	// arches are those of the nodes, if they can be read, labels what they have in common.
	arches   []string
	labels   map[string]string
	identity Identity
	// unmeasured is why the usage of pods cannot be read; empty if it can.
	unmeasured string
}

func (s state) room(limits corev1.ResourceList) corev1.ResourceList {
	return Room(limits, s.quotas, s.own)
}

// roomOf is what pods on nodes of the architecture may request: the namespace has one room for all, so the requests of
// home's pods on the others are subtracted.
func (s state) roomOf(arch string, limits corev1.ResourceList) corev1.ResourceList {
	room := s.room(limits)
	for other, used := range s.ownBy {
		if other == arch {
			continue
		}
		for name, q := range used {
			left, bounded := room[name]
			if !bounded {
				continue
			}
			if left.Sub(q); left.Sign() < 0 {
				left = resource.Quantity{Format: left.Format}
			}
			room[name] = left
		}
	}
	return room
}

// rules is the state last read.
type rules struct {
	now atomic.Pointer[state]
}

func (r *rules) get() state {
	if s := r.now.Load(); s != nil {
		return *s
	}
	return state{}
}

func (r *rules) set(s state) { r.now.Store(&s) }

// read reads all of it. What may not be read is left out.
func read(ctx context.Context, client kubernetes.Interface, config *rest.Config, s Settings, cluster string) (state, error) {
	var out state
	from := foreign.Origin{Name: config.Host, Cure: "rivulet burst list"}
	quotas, err := client.CoreV1().ResourceQuotas(s.Namespace).List(ctx, metav1.ListOptions{})
	if denied(&err) {
		return out, err
	} else if quotas != nil {
		out.quotas = quotas.Items
	}
	limits, err := client.CoreV1().LimitRanges(s.Namespace).List(ctx, metav1.ListOptions{})
	if denied(&err) {
		return out, err
	} else if limits != nil {
		out.limits = limits.Items
	}
	var pods []corev1.Pod
	err = foreign.Pages(ctx, from, metav1.ListOptions{LabelSelector: rewrite.HomeLabel + "=" + cluster}, client.CoreV1().Pods(s.Namespace).List,
		func(l *corev1.PodList) { pods = append(pods, l.Items...) })
	if err != nil {
		return out, err
	}
	for _, read := range []any{out.quotas, out.limits, pods} {
		if err := foreign.Quantities(read); err != nil {
			return out, err
		}
	}
	out.own = asks(pods)
	byArch := map[string][]corev1.Pod{}
	for _, p := range pods {
		arch := p.Spec.NodeSelector[corev1.LabelArchStable]
		byArch[arch] = append(byArch[arch], p)
	}
	out.ownBy = map[string]corev1.ResourceList{}
	for arch, list := range byArch {
		out.ownBy[arch] = asks(list)
	}
	var nodes []corev1.Node
	err = foreign.Pages(ctx, from, metav1.ListOptions{}, client.CoreV1().Nodes().List, func(l *corev1.NodeList) { nodes = append(nodes, l.Items...) })
	if denied(&err) {
		return out, err
	}
	out.arches, out.labels = platforms(nodes)
	out.unmeasured = unmeasured(ctx, client, s.Namespace)
	out.identity, _ = identify(ctx, client, s.Namespace) // empty if a proxy refuses the question
	out.security, err = security(ctx, client, config, s.Namespace)
	return out, err
}

// denied reports any error except missing rights, and clears that one.
func denied(err *error) bool {
	if apierrors.IsForbidden(*err) {
		*err = nil
	}
	return *err != nil
}

// platforms are the architectures of nodes that accept pods, most nodes first, and the topology labels that all of them
// have.
func platforms(nodes []corev1.Node) (arches []string, labels map[string]string) {
	count := map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		arch := n.Labels[corev1.LabelArchStable]
		if n.Spec.Unschedulable || arch == "" || n.Labels[corev1.LabelOSStable] == "windows" {
			continue
		}
		if count[arch]++; count[arch] == 1 {
			arches = append(arches, arch)
		}
		if labels == nil {
			labels = map[string]string{}
			for _, key := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone} {
				if value := n.Labels[key]; value != "" {
					labels[key] = value
				}
			}
		}
		for key, value := range labels {
			if n.Labels[key] != value {
				delete(labels, key)
			}
		}
	}
	slices.SortStableFunc(arches, func(a, b string) int { return count[b] - count[a] })
	return arches, labels
}

const enforceLabel = "pod-security.kubernetes.io/enforce"

// security determines the enforced Pod Security level: from the namespace's label or, if that may not be read, from the
// API server's warning when a ReplicaSet that violates it is created by a dry run.
func security(ctx context.Context, client kubernetes.Interface, config *rest.Config, namespace string) (string, error) {
	ns, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err == nil {
		return cmp.Or(ns.Labels[enforceLabel], "privileged"), nil
	}
	if denied(&err) {
		return "", err
	}
	var heard warnings
	config = rest.CopyConfig(config)
	config.WarningHandlerWithContext = &heard
	trial, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("burst: %w", err)
	}
	labels := map[string]string{"rivulet.dev/trial": "true"}
	_, err = trial.AppsV1().ReplicaSets(namespace).Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "rivulet-trial-"},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "trial", Image: "trial"}}}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if denied(&err) || apierrors.IsInvalid(err) {
		return "", nil // a webhook refuses the trial, which does not show the level
	}
	for _, text := range heard.all() {
		if strings.Contains(text, `PodSecurity "restricted`) {
			return "restricted", nil
		}
	}
	return "", nil
}

// warnings records the warnings of an API server.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}
