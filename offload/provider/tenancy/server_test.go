package tenancy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// provider is a Tenancy over a real API server. The peer is told by a header of
// the test's own, in the place of a pinned certificate.
type provider struct {
	*Tenancy
	server *apiserver.Server
	admin  kubernetes.Interface
	url    string
	test   *testing.T // the whole story; subtests end too early
	share  *atomic.Pointer[offer.Shares]
	keeps  *atomic.Pointer[[]string] // Config.Withheld
	fault  *fault                    // between the Tenancy and its API server
	// released are twins that were given back, by consumer and name at home.
	released [][2]string
}

const (
	who   = "Test-Peer"
	grace = 2 * time.Second
	// The product's is DefaultForceAfter. What is left goes that much sooner.
	forceAfter = 4 * time.Second
)

func start(t *testing.T) *provider {
	t.Helper()
	server := apiserver.Start(t, "--kube-controller-manager-arg=pvclaimbinder-sync-period=1s") // when it looks again for a claim's volume
	share := &atomic.Pointer[offer.Shares]{}
	share.Store(&offer.Shares{})
	keeps := &atomic.Pointer[[]string]{}
	keeps.Store(&[]string{})
	between := &fault{}
	local := rest.CopyConfig(server.Config)
	local.Wrap(between.wrap)
	between.set(noBindings)
	tenancy, err := New(Config{
		Local: local, ClusterName: func() string { return "p" },
		Shares: func() offer.Shares { return *share.Load() }, Grace: grace, ForceAfter: forceAfter, Volumes: folders{}, Withheld: func() []string { return *keeps.Load() },
		PeerID: func(r *http.Request) (peer.ID, bool) { return peer.ID(r.Header.Get(who)), r.Header.Get(who) != "" },
		LAN:    &LAN{Ports: func() Ports { return Ports{First: 31000, Last: 31019} }, Address: func() netip.Addr { return netip.MustParseAddr("192.0.2.7") }, Changed: new(changes.Signal).Changed},
		PeerName: func(id peer.ID) string {
			return map[peer.ID]string{alice: "alice", bob: "bob"}[id]
		},
		Neighbours: func() map[peer.ID]netip.Prefix {
			return map[peer.ID]netip.Prefix{alice: netip.MustParsePrefix("10.70.0.0/16"), bob: netip.MustParsePrefix("10.71.0.0/16")}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tenancy.Run(ctx) }()
	mux := http.NewServeMux()
	for pattern, handler := range tenancy.Routes() {
		mux.Handle(pattern, handler)
	}
	front := httptest.NewServer(mux)
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	p := &provider{Tenancy: tenancy, server: server, admin: server.Client, url: front.URL, test: t, share: share, keeps: keeps, fault: between}
	nothingBeforeItIsBounded(t, p)
	return p
}

// node makes a node with the given status; the node controller writes there too,
// so it is patched.
func (p *provider) node(t *testing.T, name, status string) {
	t.Helper()
	nodes := p.admin.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Patch(t.Context(), name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// ask sends a request as the peer and returns status and body.
func (p *provider) ask(t *testing.T, as peer.ID, method, path string) (int, map[string]any) {
	t.Helper()
	r, _ := http.NewRequestWithContext(t.Context(), method, p.url+path, nil)
	r.Header.Set(who, string(as))
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var body map[string]any
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		t.Fatalf("%s %s: %d with %v", method, path, response.StatusCode, err)
	}
	return response.StatusCode, body
}

func (p *provider) twinOf(t *testing.T, as peer.ID, home string) string {
	t.Helper()
	code, body := p.ask(t, as, http.MethodPut, "/v1/namespaces/"+home)
	if code != http.StatusOK {
		t.Fatalf("PUT %s: %d %v", home, code, body)
	}
	return body["name"].(string)
}

// consumer is a Kubernetes client as a consumer has it; forged headers are added
// to each request.
func (p *provider) consumer(t *testing.T, as peer.ID, forged http.Header) (kubernetes.Interface, *rest.Config) {
	t.Helper()
	config := &rest.Config{Host: p.url + prefix, QPS: -1, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return transport(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set(who, string(as))
			for key, values := range forged {
				r.Header[key] = values
			}
			return next.RoundTrip(r)
		})
	}}
	return kubernetes.NewForConfigOrDie(config), config
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// One API server for all: starting one takes longer than any of the tests.
func TestProvider(t *testing.T) {
	p := start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *provider)
	}{
		{"offer", testOfferRoute}, // from no node to the first
		{"twins", testTwins},
		{"a consumer sees only its twins", testConsumerSeesOnlyItsTwins},
		{"admission in twins", testAdmissionInTwins},
		{"whose a pod is", testWhoseAPodIs},
		{"network policies", testPolicies},
		{"ingresses", testIngresses},
		{"where ingresses lead", testWhereIngressesLead},
		{"hosts", testHosts},
		{"ports of the LAN", testPortsOfTheLAN},
		{"watches and upgrades pass", testWatchAndUpgradePass},
		{"what tenants must not have", testWhatTenantsMustNotHave},
		{"pods are bounded", testPodsAreBounded},
		{"images of tenants", testImagesOfTenants},
		{"twins that go are emptied", testTwinsThatGoAreEmptied},
		{"objects are bounded", testObjectsAreBounded},
		{"bytes are bounded", testBytesAreBounded},
		{"one quota over all twins", testOneQuotaOverAllTwins},
		{"a smaller share", testSmallerShare},
		{"revocation", testRevocation},
		{"claims of tenants", testClaimsOfTenants},
		{"storage classes", testStorageClasses},
		{"disks", testDisks},
		{"runtime classes", testRuntimeClasses},
		{"what tenants do to others", testOthersPods},
		{"ports and endpoints", testPortsAndEndpoints},
		{"what home keeps", testWhatHomeKeeps},
		{"what the owner's admission adds", testOwnersAdmission},
		{"twins at once", testTwinsAtOnce},
		{"labels of twins", testLabelsOfTwins},
		{"policies that somebody deletes or changes", testPoliciesAreKept},
		{"twins that were given back", testReleasedTwins},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, p) })
	}
}

func testTwins(t *testing.T, p *provider) {
	ctx := t.Context()

	// Asked for twice, made once, and furnished.
	if first, second := p.twinOf(t, alice, "lab"), p.twinOf(t, alice, "lab"); first != "lab-alice-aliceaaa" || second != first {
		t.Fatalf("twins %s and %s, want lab-alice-aliceaaa", first, second)
	}
	ns, err := p.admin.CoreV1().Namespaces().Get(ctx, "lab-alice-aliceaaa", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ns.Labels[policy.OriginLabel] != string(alice) || ns.Annotations[policy.HomeNamespaceAnnotation] != "lab" ||
		ns.Labels["pod-security.kubernetes.io/enforce"] != "baseline" {
		t.Errorf("twin %v %v", ns.Labels, ns.Annotations)
	}
	account, err := p.admin.CoreV1().ServiceAccounts("lab-alice-aliceaaa").Get(ctx, "default", metav1.GetOptions{})
	if err != nil || account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken {
		t.Errorf("pods of the twin get a token of the provider: %v %v", account, err)
	}

	// A label that somebody took off comes back.
	delete(ns.Labels, "pod-security.kubernetes.io/enforce")
	if _, err := p.admin.CoreV1().Namespaces().Update(ctx, ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.twinOf(t, alice, "lab")
	if ns, err = p.admin.CoreV1().Namespaces().Get(ctx, "lab-alice-aliceaaa", metav1.GetOptions{}); err != nil || ns.Labels["pod-security.kubernetes.io/enforce"] != "baseline" {
		t.Errorf("not repaired: %v %v", ns.Labels, err)
	}

	// A name that is somebody else's is left alone, and so is he.
	taken := twinNames("db", "alice", alice)
	for _, name := range []string{twinNames("web", "alice", alice)[0], taken[0], taken[1]} {
		if _, err := p.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	web := twinNames("web", "alice", alice)[1]
	if twin := p.twinOf(t, alice, "web"); twin != web {
		t.Errorf("twin %s, want %s", twin, web)
	}
	code, body := p.ask(t, alice, http.MethodPut, "/v1/namespaces/db")
	if code != http.StatusConflict || body["code"] != "name-taken" || body["cure"] == "" {
		t.Errorf("both names taken: %d %v", code, body)
	}
	// One that was made under a name without the ID keeps it.
	if _, err := p.admin.CoreV1().Namespaces().Create(ctx, twinNamespace("old-alice", "old", alice), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if twin := p.twinOf(t, alice, "old"); twin != "old-alice" {
		t.Errorf("twin %s, want the old one", twin)
	}
	p.ask(t, alice, http.MethodDelete, "/v1/namespaces/old")
	await.True(t, time.Minute, "the old twin is gone", func() bool {
		code, _ := p.ask(t, alice, http.MethodDelete, "/v1/namespaces/old")
		return code == http.StatusNotFound
	})
	for _, c := range []struct {
		as           peer.ID
		method, path string
		want         int
	}{
		{"", http.MethodGet, "/v1/namespaces", 401},
		{"short", http.MethodGet, "/v1/namespaces", 401},
		{alice, http.MethodPut, "/v1/namespaces/Not%20A%20Name", 400},
		{alice, http.MethodPut, "/v1/namespaces/" + strings.Repeat("x", 64), 400},
		{bob, http.MethodDelete, "/v1/namespaces/lab", 404},
		{alice, http.MethodDelete, "/v1/namespaces/db", 404},
	} {
		if code, body := p.ask(t, c.as, c.method, c.path); code != c.want || body["code"] == "" || body["message"] == "" || body["cure"] == "" {
			t.Errorf("%s %s as %q: %d %v, want %d and a problem", c.method, c.path, c.as, code, body, c.want)
		}
	}
	if _, body := p.ask(t, alice, http.MethodGet, "/v1/namespaces"); fmt.Sprint(body["twins"]) != "map[lab:lab-alice-aliceaaa web:"+web+"]" {
		t.Errorf("alice's twins: %v", body)
	}
	if _, body := p.ask(t, bob, http.MethodGet, "/v1/namespaces"); fmt.Sprint(body["twins"]) != "map[]" {
		t.Errorf("bob's twins: %v", body)
	}
	await.True(t, time.Minute, "status", func() bool {
		all, _ := p.Status()
		return fmt.Sprint(all[alice].Twins) == "map[lab:lab-alice-aliceaaa web:"+web+"]" && len(all) == 1
	})

	// Released, gone, and made again when it is asked for again.
	if code, body := p.ask(t, alice, http.MethodDelete, "/v1/namespaces/lab"); code != http.StatusAccepted {
		t.Fatalf("DELETE: %d %v", code, body)
	}
	await.True(t, time.Minute, "the twin is gone", func() bool {
		code, _ := p.ask(t, alice, http.MethodDelete, "/v1/namespaces/lab")
		return code == http.StatusNotFound
	})
	var asking sync.WaitGroup
	for range 8 { // at once, and still only one
		asking.Go(func() {
			if code, body := p.ask(t, alice, http.MethodPut, "/v1/namespaces/lab"); code != http.StatusOK || body["name"] != "lab-alice-aliceaaa" {
				t.Errorf("made again: %d %v", code, body)
			}
		})
	}
	asking.Wait()
	if _, body := p.ask(t, alice, http.MethodGet, "/v1/namespaces"); fmt.Sprint(body["twins"]) != "map[lab:lab-alice-aliceaaa web:"+web+"]" {
		t.Errorf("alice's twins: %v", body)
	}
}

// A hundred twins are the most, also of those who ask for all of them at once.
func testTwinsAtOnce(t *testing.T, p *provider) {
	ctx := t.Context()
	before := 0
	await.True(t, time.Minute, "no twin of bob's is about to go", func() bool {
		all := p.namespacesOf(t, bob)
		before = len(all)
		return !slices.ContainsFunc(all, func(n corev1.Namespace) bool { return n.DeletionTimestamp != nil })
	})
	for i := range maxTwins - before - 5 { // bare ones are enough
		ns := twinNamespace(fmt.Sprint("bare-", i), fmt.Sprint("bare-", i), bob)
		if _, err := p.admin.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.WaitGroup
	var refused atomic.Int32
	for i := range 30 {
		asking.Go(func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPut, fmt.Sprint(p.url, "/v1/namespaces/flood-", i), nil)
			r.Header.Set(who, string(bob))
			response, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
			if response.StatusCode == http.StatusForbidden {
				refused.Add(1)
			}
		})
	}
	asking.Wait()
	if n := len(p.namespacesOf(t, bob)); n != maxTwins || refused.Load() < 20 {
		t.Errorf("%d twins, %d of 30 requests refused; want %d, and most refused", n, refused.Load(), maxTwins)
	}
}

func (p *provider) namespacesOf(t *testing.T, as peer.ID) []corev1.Namespace {
	t.Helper()
	list, err := p.of(t.Context(), as)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func testConsumerSeesOnlyItsTwins(t *testing.T, p *provider) {
	ctx := t.Context()
	mine, other := p.twinOf(t, alice, "lab"), p.twinOf(t, bob, "lab")
	forged := http.Header{
		"Impersonate-User": {"system:admin"}, "Impersonate-Group": {"system:masters"}, "X-Remote-User": {"system:admin"},
		"X-Remote-Group": {"system:masters"}, "Authorization": {"Bearer x"}, "Connection": {"Impersonate-User, Impersonate-Group"},
	}
	for name, headers := range map[string]http.Header{"plain": nil, "forged": forged} {
		t.Run(name, func(t *testing.T) {
			c, _ := p.consumer(t, alice, headers)
			if _, err := c.Discovery().ServerVersion(); err != nil {
				t.Errorf("discovery: %v", err)
			}
			if _, err := c.CoreV1().ConfigMaps(mine).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Errorf("own twin: %v", err)
			}
			errs := map[string]error{}
			_, errs["other twin"] = c.CoreV1().ConfigMaps(other).List(ctx, metav1.ListOptions{})
			_, errs["kube-system"] = c.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
			_, errs["all"] = c.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			_, errs["nodes"] = c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			_, errs["namespaces"] = c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
			_, errs["pod elsewhere"] = c.CoreV1().Pods(other).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
			_, errs["account"] = c.CoreV1().ServiceAccounts(mine).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
			_, errs["role"] = c.RbacV1().Roles(mine).List(ctx, metav1.ListOptions{})
			for what, err := range errs {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), User(alice)) {
					t.Errorf("%s: %v, want refused as %s", what, err, User(alice))
				}
			}
			_, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
			if !apierrors.IsForbidden(err) {
				t.Errorf("/metrics: %v, want refused", err)
			}
		})
	}
}

// Who may make pods in an ordinary namespace cannot pass one off as another cluster's, at once or later.
func testWhoseAPodIs(t *testing.T, p *provider) {
	pods := p.admin.CoreV1().Pods("default")
	made := func(name string, labels, annotations map[string]string) (*corev1.Pod, error) {
		return pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: annotations},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), policy.OriginLabel) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, label := range []string{string(alice), ""} {
		_, err := made("posing", map[string]string{policy.OriginLabel: label}, nil)
		refused("made with the label", err)
		_, err = made("posing", nil, map[string]string{policy.OriginLabel: label})
		refused("made with the annotation", err)
	}
	own, err := made("own", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType} {
		_, err = pods.Patch(t.Context(), own.Name, kind, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, policy.OriginLabel, alice), metav1.PatchOptions{})
		refused("changed", err)
		_, err = pods.Patch(t.Context(), own.Name, kind, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, policy.OriginLabel, alice), metav1.PatchOptions{})
		refused("annotated", err)
		_, err = pods.Patch(t.Context(), own.Name, kind, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, policy.OriginLabel, alice), metav1.PatchOptions{}, "status")
		if now, got := pods.Get(t.Context(), own.Name, metav1.GetOptions{}); got != nil || now.Labels[policy.OriginLabel] != "" {
			t.Errorf("changed by its status: %v, %v", err, got)
		}
	}
	if _, err := pods.Patch(t.Context(), own.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

func testAdmissionInTwins(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "lab")
	c, _ := p.consumer(t, alice, nil)

	service := func(spec corev1.ServiceSpec) error {
		spec.Ports = []corev1.ServicePort{{Port: 80}}
		_, err := c.CoreV1().Services(twin).Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, Spec: spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	if err := service(corev1.ServiceSpec{}); err != nil {
		t.Errorf("an inner service: %v", err)
	}
	for what, spec := range map[string]corev1.ServiceSpec{
		"node port": {Type: corev1.ServiceTypeNodePort}, "load balancer": {Type: corev1.ServiceTypeLoadBalancer}, "external IP": {ExternalIPs: []string{"192.0.2.1"}},
	} {
		if err := service(spec); err == nil || !strings.Contains(err.Error(), "lent to other clusters") {
			t.Errorf("%s: %v, want refused with a reason", what, err)
		}
	}

	// Pods made for the consumer stay on this cluster and carry its mark, however
	// they are written.
	pod := func(spec corev1.PodSpec) *corev1.Pod {
		t.Helper()
		spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		made, err := p.admin.CoreV1().Pods(twin).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: map[string]string{policy.OriginLabel: string(bob)}}, Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	if made := pod(corev1.PodSpec{}); made.Labels[policy.OriginLabel] != string(alice) {
		t.Errorf("the pod carries %v, want alice's mark", made.Labels)
	}
	for _, c := range []struct {
		asks corev1.DNSPolicy
		own  *corev1.PodDNSConfig
		want string // policy, servers and options
	}{
		{corev1.DNSDefault, nil, "ClusterFirst [] ndots=1 "},
		{corev1.DNSDefault, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}, Options: []corev1.PodDNSConfigOption{{Name: "timeout", Value: ptr.To("2")}}}, "ClusterFirst [192.0.2.1] timeout=2 ndots=1 "},
		{corev1.DNSDefault, &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("3")}}}, "ClusterFirst [] ndots=3 "},
		{corev1.DNSClusterFirst, nil, "ClusterFirst"},
		{corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}, "None [192.0.2.1] "},
	} {
		made := pod(corev1.PodSpec{DNSPolicy: c.asks, DNSConfig: c.own})
		got := string(made.Spec.DNSPolicy)
		if d := made.Spec.DNSConfig; d != nil {
			got += fmt.Sprint(" ", d.Nameservers, " ")
			for _, o := range d.Options {
				got += o.Name + "=" + *o.Value + " "
			}
		}
		if got != c.want {
			t.Errorf("dnsPolicy %s became %s, want %s", c.asks, got, c.want)
		}
	}
	term := func(requirements ...corev1.NodeSelectorRequirement) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}}}}}
	}
	const here = "{rivulet.dev/virtual-node DoesNotExist []} {rivulet.dev/worker NotIn [true]}" // on a node that isolates them
	arm := corev1.NodeSelectorRequirement{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"arm64"}}
	for what, affinity := range map[string]*corev1.Affinity{"none": nil, "empty": {}, "required": term(arm), "matches nothing": term()} {
		made := pod(corev1.PodSpec{Affinity: affinity, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}})
		got := fmt.Sprint(made.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
		want := map[string]string{
			"none": "[{[" + here + "] []}]", "empty": "[{[" + here + "] []}]",
			"required": "[{[{kubernetes.io/arch In [arm64]} " + here + "] []}]", "matches nothing": "[{[] []}]",
		}[what]
		if got != want {
			t.Errorf("affinity %s became %s, want %s", what, got, want)
		}
	}
	relabelled, err := c.CoreV1().Pods(twin).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	name := relabelled.Items[0].Name
	patched, err := c.CoreV1().Pods(twin).Patch(ctx, name, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"rivulet.dev/origin":null,"a":"b"},"annotations":{"rivulet.dev/origin":null,"a":"b"}}}`), metav1.PatchOptions{})
	if err != nil || patched.Labels[policy.OriginLabel] != string(alice) || patched.Labels["a"] != "b" ||
		patched.Annotations[policy.OriginLabel] != string(alice) || patched.Annotations["a"] != "b" {
		t.Errorf("after relabelling: %v %v %v", patched.Labels, patched.Annotations, err)
	}
	// Pod Security is the API server's own.
	_, err = p.admin.CoreV1().Pods(twin).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "root"}, Spec: corev1.PodSpec{
		HostNetwork: true, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "PodSecurity") {
		t.Errorf("host network: %v, want refused by Pod Security", err)
	}
}

func testWatchAndUpgradePass(t *testing.T, p *provider) {
	ctx := t.Context()
	twin := p.twinOf(t, alice, "lab")
	c, _ := p.consumer(t, alice, nil)

	list, err := c.CoreV1().ConfigMaps(twin).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.CoreV1().ConfigMaps(twin).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=fresh", ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := p.admin.CoreV1().ConfigMaps(twin).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-w.ResultChan():
		if m, ok := e.Object.(*corev1.ConfigMap); !ok || m.Name != "fresh" {
			t.Errorf("watched %v", e)
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch says nothing: is it buffered?")
	}

	// A pod on a node that nobody runs: by WebSocket the API server upgrades first
	// and tells then, by SPDY it tells at once, that no kubelet answers. What counts
	// is that it was the API server, and under which name it was asked.
	p.node(t, "ghost", `{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":1}}}}`)
	if _, err := p.admin.CoreV1().Pods(twin).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		SchedulerName: "none", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.admin.CoreV1().Pods(twin).Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "ghost"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	exec := func(namespace, upgrade string) (*http.Response, string) {
		t.Helper()
		method := http.MethodPost
		r, _ := http.NewRequestWithContext(ctx, method, p.url+prefix+"/api/v1/namespaces/"+namespace+"/pods/p/exec?container=c&command=true&stdout=true", nil)
		if upgrade == "websocket" {
			r.Method = http.MethodGet
			r.Header.Set("Sec-WebSocket-Version", "13")
			r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
			r.Header.Set("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
		} else {
			r.Header.Set("X-Stream-Protocol-Version", "v4.channel.k8s.io")
		}
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", upgrade)
		r.Header.Set(who, string(alice))
		response, err := (&http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode == http.StatusSwitchingProtocols {
			return response, ""
		}
		text, _ := io.ReadAll(response.Body)
		return response, string(text)
	}
	if response, text := exec(twin, "websocket"); response.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("websocket: %s %s, want switched protocols", response.Status, text)
	}
	if response, text := exec(twin, "SPDY/3.1"); !strings.Contains(text, "127.0.0.1:1") {
		t.Errorf("SPDY: %s %s, want the API server to look for the kubelet", response.Status, text)
	}
	for _, upgrade := range []string{"websocket", "SPDY/3.1"} {
		if response, text := exec("kube-system", upgrade); response.StatusCode != http.StatusForbidden || !strings.Contains(text, User(alice)) {
			t.Errorf("%s elsewhere: %s %s, want forbidden to %s", upgrade, response.Status, text, User(alice))
		}
	}
}

func testOfferRoute(t *testing.T, p *provider) {
	ctx, leave := context.WithTimeout(t.Context(), 30*time.Second)
	defer leave()
	open := func(path string) *bufio.Scanner {
		t.Helper()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
		r.Header.Set(who, string(alice))
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return bufio.NewScanner(response.Body)
	}
	// Nobody hears of a cluster that he does not know already.
	if bare := open("/v1/offer"); !bare.Scan() || strings.Contains(bare.Text(), "10.70.") || strings.Contains(bare.Text(), "10.71.") || strings.Contains(bare.Text(), string(bob)) {
		t.Errorf("told without being asked: %s", bare.Text())
	}
	lines := open("/v1/offer?of=" + string(alice))
	next := func() (o offer.Offer) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	if o := next(); o.Ready || o.Reason == "" || o.Neighbours[alice].String() != "10.70.0.0/16" || len(o.Neighbours) != 1 {
		t.Errorf("without nodes: %+v, want a reason, and the neighbours", o)
	}
	apiserver.StartKubelet(p.test, p.server, "n") // for the tests to come as well
	for {
		if o := next(); o.Ready {
			if o.Architecture == "" || o.Allocatable.Cpu().Value() != 4 {
				t.Errorf("%+v", o)
			}
			return
		}
	}
}

func TestWithoutAPIServer(t *testing.T) {
	tenancy, err := New(Config{Local: &rest.Config{Host: "http://127.0.0.1:1"}, ClusterName: func() string { return "p" },
		PeerID: func(*http.Request) (peer.ID, bool) { return alice, true }})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, handler := range tenancy.Routes() {
		mux.Handle(pattern, handler)
	}
	for _, c := range []struct{ method, path string }{{"PUT", "/v1/namespaces/lab"}, {"GET", "/k8s/api/v1/pods"}} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "try again") {
			t.Errorf("%s %s: %d %s, want 503 and a cure", c.method, c.path, w.Code, w.Body)
		}
	}
}
