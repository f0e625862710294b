package tenancy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
)

// slice is one with so many endpoints and ports, of no Service that there is.
func slice(name string, endpoints, ports int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.70.%d.%d", i/250, 1+i%250)}})
	}
	for i := range ports {
		name, protocol, port := fmt.Sprint("p", i), corev1.ProtocolTCP, int32(80+i)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &port})
	}
	return s
}

func largeSlice(endpoints, ports int) string {
	s := slice("", endpoints, ports)
	s.GenerateName = "x-"
	text, _ := json.Marshal(s)
	return string(text)
}

func served(name string, ports int, selector map[string]string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: selector}}
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(80 + i)})
	}
	return s
}

// What kube-proxy writes for a consumer is bounded: in one object, whoever writes it, and in all of them, before they are stored.
func testPortsAndEndpoints(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, carol, "routes")
	c, _ := p.consumer(t, carol, nil)
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	slices, services := c.DiscoveryV1().EndpointSlices(twin), c.CoreV1().Services(twin)
	for what, try := range map[string]struct {
		err   func() error
		words string
	}{
		"a port too many": {func() error { _, err := services.Create(ctx, served("x", mostPorts+1, nil), dry); return err }, "32 ports at most"},
		"a selector": {func() error {
			_, err := services.Create(ctx, served("x", 1, map[string]string{"a": "b"}), dry)
			return err
		}, "chooses no pods"},
		"ports of a slice": {func() error { _, err := slices.Create(ctx, slice("x", 1, mostPorts+1), dry); return err }, "32 ports at most"},
		"endpoints":        {func() error { _, err := slices.Create(ctx, slice("x", mostEndpoints/8+1, 8), dry); return err }, "times its ports"},
		"addresses of one endpoint": {func() error {
			s := slice("x", 0, 32)
			s.Endpoints = []discoveryv1.Endpoint{{}}
			for i := range 32 {
				s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, fmt.Sprint("10.70.0.", i+1))
			}
			_, err := slices.Create(ctx, s, dry)
			return err
		}, "times its ports"},
		"by a controller": {func() error {
			_, err := p.admin.DiscoveryV1().EndpointSlices(twin).Create(ctx, slice("x", mostEndpoints/8+1, 8), dry)
			return err
		}, "times its ports"},
	} {
		if err := try.err(); !kept(err, try.words) {
			t.Errorf("%s: %v, want it refused with %q", what, err, try.words)
		}
	}
	for what, err := range map[string]error{
		"as many ports as may be":     func() error { _, err := services.Create(ctx, served("x", mostPorts, nil), dry); return err }(),
		"as many endpoints as may be": func() error { _, err := slices.Create(ctx, slice("x", mostEndpoints/8, 8), dry); return err }(),
		"no endpoints":                func() error { _, err := slices.Create(ctx, slice("x", 0, 1), dry); return err }(),
		"nothing": func() error { // as Kubernetes writes it: null in place of lists
			_, err := slices.Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "x"}, AddressType: discoveryv1.AddressTypeIPv4}, dry)
			return err
		}(),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	// In all: many small ones and few large ones, in whichever twin.
	other := p.twinOf(t, carol, "routes2")
	p.routes.mu.Lock()
	bound, all := p.routes.bound, p.routes.all
	p.routes.bound, p.routes.all = 3000, 6000
	p.routes.mu.Unlock()
	defer func() {
		p.routes.mu.Lock()
		p.routes.bound, p.routes.all = bound, all
		p.routes.mu.Unlock()
	}()
	var writing sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, error(nil)
	for i := range 12 {
		writing.Go(func() {
			_, err := c.DiscoveryV1().EndpointSlices([]string{twin, other}[i%2]).Create(ctx, slice(fmt.Sprint("s", i), 50, 10), metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else {
				refused = err
			}
		})
	}
	writing.Wait()
	if made > 6 || made < 3 || !kept(refused, "ports and endpoints") || !strings.Contains(refused.Error(), "; delete some") {
		t.Errorf("%d slices of 500 were made, of 6; refused with %v", made, refused)
	}
	if _, err := services.Create(ctx, served("rivulet-ingress-x", 32, map[string]string{"a": "b"}), metav1.CreateOptions{}); !kept(err, "ports and endpoints") {
		t.Errorf("a Service for which Kubernetes would write endpoints: %v, want it refused", err)
	}
	if _, err := c.CoreV1().ConfigMaps(twin).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an object that has nothing of it: %v", err)
	}
	for _, ns := range []string{twin, other} {
		if err := c.DiscoveryV1().EndpointSlices(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await.NoError(t, ctx, time.Minute, "room again after they were deleted", func() error {
		_, err := slices.Create(ctx, slice("again", 10, 10), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if _, err := slices.Patch(ctx, "again", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("a patch: %v", err)
	}
	p.release(t, carol, "routes")
	p.release(t, carol, "routes2")
}

// What is counted is what the API server reads, by the type of content that it is told; what cannot be counted is not passed on.
func TestRoutesAreCountedBeforeTheyAreWritten(t *testing.T) {
	text := func(o runtime.Object) string { b, _ := json.Marshal(o); return string(b) }
	binary := func(o runtime.Object) string {
		var b bytes.Buffer
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	typed := served("web", 3, nil)
	typed.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	const services, slices = "/api/v1/namespaces/x/services", "/apis/discovery.k8s.io/v1/namespaces/x/endpointslices"
	for what, x := range map[string]struct {
		method, path, media, body string
		want                      int64 // -1: refused
	}{
		"a Service":                        {"POST", services, "application/json", text(served("web", 3, nil)), 3},
		"without a type":                   {"POST", services, "", text(served("web", 3, nil)), 3},
		"with a parameter":                 {"PUT", services + "/web", "application/json; charset=utf-8", text(typed), 3},
		"as YAML":                          {"POST", services, "application/yaml", "spec: {ports: [{port: 1}, {port: 2}]}", 2},
		"as protobuf":                      {"POST", slices, "application/vnd.kubernetes.protobuf", binary(slice("s", 20, 4)), 80},
		"one for which pods are chosen":    {"POST", services, "application/json", text(served("rivulet-ingress-web", 2, map[string]string{"a": "b"})), 2 * (1 + chosenPods)},
		"a slice":                          {"PUT", slices + "/s", "application/json", text(slice("s", 20, 4)), 80},
		"a slice without ports":            {"POST", slices, "application/json", text(slice("s", 20, 0)), 0},
		"the later of two lists":           {"POST", services, "application/json", `{"spec":{"ports":[]},"spec":{"ports":[{"port":1},{"port":2}]}}`, 2},
		"a patch of a slice":               {"PATCH", slices + "/s", "application/merge-patch+json", `{}`, mostEndpoints},
		"an apply of a Service":            {"PATCH", services + "/web", "application/apply-patch+yaml", `{}`, mostPorts * (1 + chosenPods)},
		"another kind":                     {"POST", services, "application/json", `{"apiVersion":"v1","kind":"Pod"}`, -1},
		"another version":                  {"POST", slices, "application/json", `{"apiVersion":"discovery.k8s.io/v1beta1","kind":"EndpointSlice"}`, -1},
		"a list":                           {"POST", services, "application/json", `{"apiVersion":"v1","kind":"ServiceList","items":[]}`, -1},
		"protobuf that is said to be JSON": {"POST", slices, "application/json", binary(slice("s", 20, 4)), -1},
		"JSON that is said to be protobuf": {"POST", slices, "application/vnd.kubernetes.protobuf", text(slice("s", 20, 4)), -1},
		"a type that nobody knows":         {"POST", services, "application/cbor", text(typed), -1},
		"a type that is none":              {"POST", services, "a b/c", text(typed), -1},
		"nothing":                          {"POST", services, "application/json", ``, -1},
		"not a kind with routes":           {"POST", "/api/v1/namespaces/x/configmaps", "application/json", `no JSON`, 0},
	} {
		r := httptest.NewRequest(x.method, "http://p"+prefix+x.path, strings.NewReader(x.body))
		r.Header.Set("Content-Type", x.media)
		if x.media == "" {
			r.Header.Del("Content-Type")
		}
		n, err := routesIn(r, requested(r))
		if (err != nil) != (x.want < 0) || err == nil && n != x.want {
			t.Errorf("%s: %d, %v; want %d", what, n, err, x.want)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "; ") {
				t.Errorf("%s: %v has no cure", what, err)
			}
			continue
		}
		if passed, err := io.ReadAll(r.Body); err != nil || string(passed) != x.body {
			t.Errorf("%s: %q is passed on, %v", what, passed, err)
		}
	}

	// What there is room for is divided before anything is written, however many ask at once.
	s := newRoutes(func(context.Context, peer.ID) (int64, error) { return 0, nil })
	var all sync.WaitGroup
	var mu sync.Mutex
	granted := 0
	for range 100 {
		all.Go(func() {
			if _, err := s.admit(t.Context(), alice, mostEndpoints); err == nil {
				mu.Lock()
				defer mu.Unlock()
				granted++
			}
		})
	}
	all.Wait()
	if granted != mostRoutes/mostEndpoints {
		t.Errorf("%d slices of %d at once, want %d", granted, mostEndpoints, mostRoutes/mostEndpoints)
	}
	if _, err := s.admit(t.Context(), alice, 1); err == nil || !strings.Contains(err.Error(), "have 20000 ports and endpoints here") || !strings.Contains(err.Error(), "may have 20000; delete some") {
		t.Errorf("%v, want the numbers and a cure", err)
	}
	for _, bound := range []string{fmt.Sprintf("<= %d\n    message: a Service", mostPorts), fmt.Sprintf("variables.ports <= %d\n", mostPorts), fmt.Sprintf("variables.ports <= %d\n", mostEndpoints)} {
		if !strings.Contains(string(admission), bound) {
			t.Errorf("admission.yaml has another bound than %q", bound)
		}
	}
}
