package tenancy

import (
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

const (
	alice peer.ID = "aliceaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	bob   peer.ID = "bobbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestTwinNames(t *testing.T) {
	for _, c := range []struct{ home, consumer, want string }{
		{"lab", "a", "lab-a-aliceaaa"},
		{"kube-system", "a", "kube-system-a-aliceaaa"},
		{"cert", "manager", "cert-manager-aliceaaa"},
		{"lab", "", "lab-aliceaaa"},
		{"lab", "Pi im Labor!", "lab-pi-im-labor-aliceaaa"},
	} {
		got := twinNames(c.home, c.consumer, alice)
		if got[0] != c.want || !strings.HasSuffix(got[1], "-aliceaaa") || got[0] == got[1] {
			t.Errorf("twin of %s for %q = %v, want %s", c.home, c.consumer, got, c.want)
		}
	}
	long := strings.Repeat("l", 63)
	if got := twinNames(long, "a", alice); got[0] == got[1] || got[0] == twinNames(long, "b", alice)[0] {
		t.Errorf("shortened names of a long namespace collide: %v", got)
	}
}

func TestTwinNamesAreNamespaceNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		home := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, "home")
		consumer := rapid.String().Draw(t, "consumer")
		for i, name := range twinNames(home, consumer, alice) {
			if !strings.HasSuffix(name, "-"+alice.Short()) || name == twinNames(home, consumer, bob)[i] {
				t.Fatalf("%q may be another's", name)
			}
			if faults := validation.IsDNS1123Label(name); len(faults) > 0 {
				t.Fatalf("%q: %v", name, faults)
			}
		}
	})
}

// A twin is known by what it says of itself and never by its name, so one that was made when names had no ID
// keeps its own: its pods and volumes are in it. One that goes gives way to one that does not.
func TestATwinWithoutAnIDKeepsItsName(t *testing.T) {
	named := func(name, home string, consumer peer.ID, going bool) corev1.Namespace {
		ns := *twinNamespace(name, home, consumer)
		if going {
			ns.DeletionTimestamp = &metav1.Time{}
		}
		return ns
	}
	all := []corev1.Namespace{
		named("lab-a", "lab", bob, false), named("other-a", "other", alice, false),
		named("lab-gone", "lab", alice, true), named("lab-a-old", "lab", alice, false),
	}
	if got := twinAmong(all, "lab", alice); got == nil || got.Name != "lab-a-old" {
		t.Errorf("twin %v, want the one that there is, lab-a-old", got)
	}
	if got := twinAmong(all[:3], "lab", alice); got == nil || got.Name != "lab-gone" {
		t.Errorf("twin %v, want the one that goes", got)
	}
	if got := twinAmong(all[:2], "lab", alice); got != nil {
		t.Errorf("twin %s is another's", got.Name)
	}
}

func TestAPIPath(t *testing.T) {
	cases := []struct{ raw, path string }{
		{"/k8s/api/v1/namespaces/lab-a/pods", "/api/v1/namespaces/lab-a/pods"},
		{"/k8s/apis", "/apis"},
		{"/k8s/apis/", "/apis/"},
		{"/k8s/version", "/version"},
		{"/k8s/openapi/v3/apis/apps/v1", "/openapi/v3/apis/apps/v1"},
		{"/k8s/", ""},
		{"/k8s", ""},
		{"/k8s/metrics", ""},
		{"/k8s/logs/", ""},
		{"/k8s/debug/pprof/", ""},
		{"/k8s/apiary", ""},
		{"/k8s/v1-k3s/supervisor/kubeconfig", ""},
		{"/k8s/api/../metrics", ""},
		{"/k8s/api/%2e%2e/metrics", ""},
		{"/k8s/api%2Fv1/nodes", ""},
		{"/k8s//api", ""},
		{"/k8s/api//v1", ""},
		{"/other/api", ""},
	}
	for _, c := range cases {
		u, err := url.Parse(c.raw)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := apiPath(u); got != c.path || ok != (c.path != "") {
			t.Errorf("%s goes to %q (%v), want %q", c.raw, got, ok, c.path)
		}
	}
}

// Whatever path passes, the API server sees one of the open trees.
func FuzzAPIPath(f *testing.F) {
	f.Add("/k8s/api/v1/pods")
	f.Add("/k8s/api/%2e%2e/metrics")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			return
		}
		got, ok := apiPath(u)
		if !ok {
			return
		}
		clean := (&url.URL{Path: got}).JoinPath().Path
		first := strings.SplitN(strings.TrimPrefix(clean, "/"), "/", 2)[0]
		switch first {
		case "api", "apis", "version", "openapi":
		default:
			t.Fatalf("%q reaches %q", raw, clean)
		}
	})
}
