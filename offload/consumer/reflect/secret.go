package reflect

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"rivulet/offload/policy"
)

func secrets() kind[*corev1.Secret] {
	k := of(policy.KindSecret, &corev1.Secret{}, func(c kubernetes.Interface, ns string) typed.SecretInterface {
		return c.CoreV1().Secrets(ns)
	})
	k.translate, k.merge = translateSecret, mergeSecret
	return k
}

// translateSecret accepts all, except credentials of home's API server and the history of Helm.
func translateSecret(home *corev1.Secret) (*corev1.Secret, bool) {
	switch home.Type {
	case corev1.SecretTypeServiceAccountToken, corev1.SecretTypeBootstrapToken, "helm.sh/release.v1":
		return nil, false
	}
	if helmRelease(home) {
		return nil, false
	}
	full := home.DeepCopy()
	return &corev1.Secret{Type: full.Type, Data: full.Data, Immutable: full.Immutable}, true
}

func mergeSecret(have, want *corev1.Secret) bool {
	before := have.DeepCopy()
	have.Data, have.Immutable = want.Data, want.Immutable
	return before.Type == want.Type &&
		(!frozen(before.Immutable) || frozen(want.Immutable) && equality.Semantic.DeepEqual(before.Data, have.Data))
}

// helmRelease reports whether Helm stores its own state in the object.
func helmRelease(o metav1.Object) bool {
	return o.GetLabels()["owner"] == "helm" && strings.HasPrefix(o.GetName(), "sh.helm.release.v1.")
}
