package reflect

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"rivulet/offload/policy"
)

func configMaps() kind[*corev1.ConfigMap] {
	k := of(policy.KindConfigMap, &corev1.ConfigMap{}, func(c kubernetes.Interface, ns string) typed.ConfigMapInterface {
		return c.CoreV1().ConfigMaps(ns)
	})
	k.translate, k.merge = translateConfigMap, mergeConfigMap
	return k
}

// leaderAnnotation marks ConfigMaps that are locks and not configuration.
const leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"

// translateConfigMap accepts every one; a twin has its own cluster's kube-root-ca.crt.
func translateConfigMap(home *corev1.ConfigMap) (*corev1.ConfigMap, bool) {
	if _, lock := home.Annotations[leaderAnnotation]; lock || home.Name == "kube-root-ca.crt" || helmRelease(home) {
		return nil, false
	}
	full := home.DeepCopy()
	return &corev1.ConfigMap{Data: full.Data, BinaryData: full.BinaryData, Immutable: full.Immutable}, true
}

func mergeConfigMap(have, want *corev1.ConfigMap) bool {
	before := have.DeepCopy()
	have.Data, have.BinaryData, have.Immutable = want.Data, want.BinaryData, want.Immutable
	return !frozen(before.Immutable) || frozen(want.Immutable) &&
		equality.Semantic.DeepEqual(before.Data, have.Data) && equality.Semantic.DeepEqual(before.BinaryData, have.BinaryData)
}

func frozen(immutable *bool) bool { return immutable != nil && *immutable }
