package reflect

import (
	"encoding/json"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

var (
	homePods = netip.MustParsePrefix("10.42.0.0/16")
	asSeen   = netip.MustParsePrefix("10.70.0.0/16") // how the target sees home's pods
)

func away(a netip.Addr) (netip.Addr, bool) { return peer.Translate(a, homePods, asSeen) }

// read parses YAML into a new object; strict, so that a misspelt field fails.
func read[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return o
}

func compare(t *testing.T, got, want any) {
	t.Helper()
	if !equality.Semantic.DeepEqual(got, want) {
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

func TestTranslateService(t *testing.T) {
	cases := []struct{ name, home, want string }{
		{"addresses, selector and policies stay home",
			`{type: ClusterIP, clusterIP: 10.43.1.2, clusterIPs: [10.43.1.2], ipFamilies: [IPv4], ipFamilyPolicy: SingleStack, selector: {app: web},
			  internalTrafficPolicy: Local, trafficDistribution: PreferClose, ports: [{name: http, port: 80, targetPort: web, protocol: TCP, appProtocol: http}]}`,
			`{type: ClusterIP, ports: [{name: http, port: 80, targetPort: web, protocol: TCP, appProtocol: http}]}`},
		{"headless stays headless", `{clusterIP: None, publishNotReadyAddresses: true, selector: {app: db}}`,
			`{type: ClusterIP, clusterIP: None, publishNotReadyAddresses: true}`},
		{"a node port becomes inner", `{type: NodePort, clusterIP: 10.43.1.2, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 30080}]}`,
			`{type: ClusterIP, ports: [{port: 80}]}`},
		{"a load balancer becomes inner",
			`{type: LoadBalancer, clusterIP: 10.43.1.2, loadBalancerIP: 1.2.3.4, loadBalancerClass: x, externalIPs: [1.2.3.4], healthCheckNodePort: 30001, ports: [{port: 80, nodePort: 30080}]}`,
			`{type: ClusterIP, ports: [{port: 80}]}`},
		{"an alias stays an alias", `{type: ExternalName, externalName: db.example.org}`, `{type: ExternalName, externalName: db.example.org}`},
		{"affinity is kept", `{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports: [{port: 80}]}`,
			`{type: ClusterIP, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}, ports: [{port: 80}]}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			home := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "web"}, Spec: *read[corev1.ServiceSpec](t, c.home)}
			got, ok := translateService(home)
			if !ok {
				t.Fatal("not reflected")
			}
			compare(t, got.Spec, *read[corev1.ServiceSpec](t, c.want))
			if ip := home.Spec.ClusterIP; ip != corev1.ClusterIPNone && got.Annotations[policy.HomeAddressAnnotation] != ip || ip == corev1.ClusterIPNone && got.Annotations != nil {
				t.Errorf("annotations %v, want the address %q", got.Annotations, ip)
			}
		})
	}
	if _, ok := translateService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}}); ok {
		t.Error("home's own API server was reflected")
	}
}

func TestTranslateEndpointSlice(t *testing.T) {
	const labels = `metadata: {namespace: lab, labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}}
addressType: IPv4
`
	cases := []struct{ name, home, want string }{
		{"addresses are translated, conditions kept, names of home dropped", labels + `
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.42.0.7], conditions: {ready: true, serving: true, terminating: false}, nodeName: a, zone: z, hostname: web-0, targetRef: {kind: Pod, name: web-0}, hints: {forZones: [{name: z}]}}
- {addresses: [10.42.0.8], conditions: {ready: false, serving: true, terminating: true}}`, `
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.70.0.7], conditions: {ready: true, serving: true, terminating: false}, hostname: web-0}
- {addresses: [10.70.0.8], conditions: {ready: false, serving: true, terminating: true}}`},
		{"out of reach is left out", labels + `
endpoints: [{addresses: [192.168.1.9]}, {addresses: [10.42.3.4]}, {addresses: [nonsense]}]`, `
endpoints: [{addresses: [10.70.3.4]}]`},
		{"nobody left is an empty slice, not none", labels + `
endpoints: [{addresses: [192.168.1.9]}]`, `{}`},
		{"IPv6 is not carried", `
metadata: {labels: {kubernetes.io/service-name: web}}
addressType: IPv6
endpoints: [{addresses: ["fd00::1"]}]`, ""},
		{"of no service", `
addressType: IPv4
endpoints: [{addresses: [10.42.0.7]}]`, ""},
		{"home's own API server", `
metadata: {namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [10.42.0.7]}]`, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := translateSlice(read[discoveryv1.EndpointSlice](t, c.home), away)
			if ok != (c.want != "") {
				t.Fatalf("reflected: %v", ok)
			}
			if !ok {
				return
			}
			want := read[discoveryv1.EndpointSlice](t, c.want)
			want.AddressType = discoveryv1.AddressTypeIPv4
			want.Labels = map[string]string{discoveryv1.LabelManagedBy: sliceManager}
			compare(t, got, want)
		})
	}
}

func TestTranslateConfigMapAndSecret(t *testing.T) {
	yes := true
	helm := metav1.ObjectMeta{Name: "sh.helm.release.v1.web.v1", Labels: map[string]string{"owner": "helm"}}
	maps := []struct {
		name string
		home corev1.ConfigMap
		kept bool
	}{
		{"verbatim", corev1.ConfigMap{Data: map[string]string{"a": "1"}, BinaryData: map[string][]byte{"b": {0}}, Immutable: &yes}, true},
		{"the target has its own authority", corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}}, false},
		{"a lock", corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{leaderAnnotation: "{}"}}}, false},
		{"a release of Helm", corev1.ConfigMap{ObjectMeta: helm}, false},
	}
	for _, c := range maps {
		got, ok := translateConfigMap(&c.home)
		if ok != c.kept {
			t.Errorf("config map, %s: reflected %v", c.name, ok)
		} else if ok {
			compare(t, got, &c.home)
		}
	}
	secrets := []struct {
		name string
		home corev1.Secret
		kept bool
	}{
		{"verbatim", corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.key": {1}}, Immutable: &yes}, true},
		{"token of home", corev1.Secret{Type: corev1.SecretTypeServiceAccountToken}, false},
		{"token to join home", corev1.Secret{Type: corev1.SecretTypeBootstrapToken}, false},
		{"a release of Helm", corev1.Secret{Type: "helm.sh/release.v1"}, false},
		{"an old release of Helm", corev1.Secret{ObjectMeta: helm, Type: corev1.SecretTypeOpaque}, false},
	}
	for _, c := range secrets {
		got, ok := translateSecret(&c.home)
		if ok != c.kept {
			t.Errorf("secret, %s: reflected %v", c.name, ok)
		} else if ok {
			compare(t, got, &c.home)
		}
	}
}

func TestMergeSaysWhatCannotBeChangedInPlace(t *testing.T) {
	yes := true
	service := func(spec string) *corev1.Service { return &corev1.Service{Spec: *read[corev1.ServiceSpec](t, spec)} }
	cases := []struct {
		name string
		got  bool
		want bool
	}{
		{"other ports", mergeService(service(`{clusterIP: 10.43.0.9, ports: [{port: 1}]}`), service(`{ports: [{port: 2}]}`)), true},
		{"headless now", mergeService(service(`{clusterIP: 10.43.0.9}`), service(`{clusterIP: None}`)), false},
		{"alias now", mergeService(service(`{clusterIP: 10.43.0.9}`), service(`{type: ExternalName, externalName: x}`)), false},
		{"slice of another family", mergeSlice(&discoveryv1.EndpointSlice{AddressType: "IPv6"}, &discoveryv1.EndpointSlice{AddressType: "IPv4"}), false},
		{"mutable map", mergeConfigMap(&corev1.ConfigMap{}, &corev1.ConfigMap{Data: map[string]string{"a": "1"}}), true},
		{"frozen map, same", mergeConfigMap(&corev1.ConfigMap{Immutable: &yes}, &corev1.ConfigMap{Immutable: &yes}), true},
		{"frozen map, other data", mergeConfigMap(&corev1.ConfigMap{Immutable: &yes}, &corev1.ConfigMap{Immutable: &yes, Data: map[string]string{"a": "1"}}), false},
		{"frozen map, thawed", mergeConfigMap(&corev1.ConfigMap{Immutable: &yes}, &corev1.ConfigMap{}), false},
		{"secret of another type", mergeSecret(&corev1.Secret{Type: "a"}, &corev1.Secret{Type: "b"}), false},
		{"secret, other data", mergeSecret(&corev1.Secret{}, &corev1.Secret{Data: map[string][]byte{"a": {1}}}), true},
	}
	for _, c := range cases {
		if c.got != c.want {
			t.Errorf("%s: in place %v, want %v", c.name, c.got, c.want)
		}
	}
}

// What the twin has after a write, defaults and allocations of its server
// included, is never written again; and one write is enough whatever was there.
func TestReflectingTwiceChangesNothing(t *testing.T) {
	k := &kindReflector[*corev1.Service]{kind: services(func(string) (string, bool) { return "", false }), space: &space{twin: "lab-a", owner: "me"}}
	rapid.Check(t, func(t *rapid.T) {
		want, _ := k.wanted(drawService(t), nil)
		have := drawService(t) // any state that an earlier write or a hand has left
		if !k.merge(have, want) {
			have = want.DeepCopy()
		}
		dress(have, want)
		serverDefaults(have)
		again := have.DeepCopy()
		if !k.merge(again, want) {
			t.Fatalf("to be made anew: %+v", again.Spec)
		}
		dress(again, want)
		if !equality.Semantic.DeepEqual(again, have) {
			t.Fatalf("written again:\n%+v\nover\n%+v", again, have)
		}
		if again.Labels[policy.ReflectedLabel] != "me" || again.Spec.Selector != nil {
			t.Fatalf("not ours: %+v", again)
		}
	})
}

func drawService(t *rapid.T) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Labels: rapid.MapOf(rapid.SampledFrom([]string{"a", "b", policy.ReflectedLabel}), rapid.SampledFrom([]string{"", "x"})).Draw(t, "labels"),
		Annotations: rapid.MapOf(rapid.SampledFrom([]string{"n", corev1.LastAppliedConfigAnnotation}), rapid.Just("x")).Draw(t, "annotations"),
	}}
	s.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"}).Draw(t, "type")
	s.Spec.SessionAffinity = rapid.SampledFrom([]corev1.ServiceAffinity{"None", "ClientIP"}).Draw(t, "affinity")
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		s.Spec.ExternalName = "db.example.org"
	case corev1.ServiceTypeClusterIP:
		s.Spec.ClusterIP = rapid.SampledFrom([]string{"None", "10.43.0.5"}).Draw(t, "ip")
	default:
		s.Spec.ClusterIP = "10.43.0.5"
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "ports") {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: string(rune('a' + i)), Port: int32(80 + i), Protocol: "TCP", TargetPort: intstr.FromInt32(int32(8080 + i)),
			NodePort: int32(rapid.SampledFrom([]int{0, 30080}).Draw(t, "node port")),
		})
	}
	return s
}

// serverDefaults does what an API server does to a Service that it stores.
func serverDefaults(s *corev1.Service) {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	if s.Spec.SessionAffinity == "" {
		s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	s.Spec.InternalTrafficPolicy = &cluster
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIP = "10.43.7.7"
	}
	s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{s.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
}
