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
		{"", ReflectUsed, ReflectUsed, false},
		{"Secret=opt-in", ReflectOptIn, ReflectUsed, false},
		{" Secret=off , ConfigMap=opt-in,", ReflectOff, ReflectOptIn, false},
		{"Secret=on", ReflectOn, ReflectUsed, false},
		{"Secret", ReflectUsed, ReflectUsed, true},
		{"secrets=off", ReflectUsed, ReflectUsed, true},
		{"Secret=maybe,ConfigMap=off", ReflectUsed, ReflectUsed, true},
	} {
		ns, err := Parse(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{NamespaceLabel: "burst"}, Annotations: map[string]string{ReflectAnnotation: c.text}}})
		if (err != nil) != c.bad || err != nil && !strings.Contains(err.Error(), "; ") {
			t.Errorf("%q: %v", c.text, err)
		}
		if ns.When != Burst || ns.Mode("Secret") != c.secret || ns.Mode("ConfigMap") != c.configMap {
			t.Errorf("%q: %+v", c.text, ns)
		}
	}
	for text, service := range map[string]string{"": ReflectOn, "Secret=on,Ingress=on,Service=opt-in": ReflectOptIn} {
		ns := Namespace{When: Services, Reflect: text}
		if got := ns.Mode("EndpointSlice"); got != ReflectOn {
			t.Errorf("services, %q: where they lead is %s", text, got)
		}
		for kind, want := range map[string]string{KindService: service, NetworkPolicyKind: ReflectOn, KindSecret: ReflectUsed, KindConfigMap: ReflectUsed, IngressKind: ReflectOff, KindClaim: ReflectOff} {
			if got := ns.Mode(kind); got != want {
				t.Errorf("services, %q: %s is %s, want %s", text, kind, got, want)
			}
		}
	}
}
