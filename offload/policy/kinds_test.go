package policy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestKindsOfANamespace(t *testing.T) {
	for _, c := range []struct {
		text, secret, configMap string
		bad                     bool
	}{
		{"", ReflectOn, ReflectOn, false},
		{"Secret=opt-in", ReflectOptIn, ReflectOn, false},
		{" Secret=off , ConfigMap=opt-in,", ReflectOff, ReflectOptIn, false},
		{"Secret=on", ReflectOn, ReflectOn, false},
		{"Secret", ReflectOn, ReflectOn, true},
		{"secrets=off", ReflectOn, ReflectOn, true},
		{"Secret=maybe,ConfigMap=off", ReflectOn, ReflectOn, true},
	} {
		ns, err := Parse(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{NamespaceLabel: "burst"}, Annotations: map[string]string{ReflectAnnotation: c.text}}})
		if (err != nil) != c.bad || err != nil && !strings.Contains(err.Error(), "; ") {
			t.Errorf("%q: %v", c.text, err)
		}
		if ns.When != Burst || ns.Mode("Secret") != c.secret || ns.Mode("ConfigMap") != c.configMap {
			t.Errorf("%q: %+v", c.text, ns)
		}
	}
}
