package policy_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/node"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/offload/target/external"
	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakenodes"
)

// room is how many pods fit on each node of testOrder.
const room = 40

// testOrder has the real scheduler fill home, a peer and a campus, after testAdmission
// has put its policies into force. What speaks against the order speaks as loud as it
// can: the pods are replicas behind a Service, which a scheduler likes to spread, home
// runs out of CPU with all its memory free, and who comes later is empty.
func testOrder(t *testing.T, server *apiserver.Server) {
	type places = map[string]int
	for _, c := range []struct {
		mode, order string
		fill        []places // with so many replicas as fit on one node, on two, on three
		both        bool     // then, what is more goes to peer and campus alike
	}{
		{mode: "burst", order: "", fill: []places{{"home": room}, {"home": room, "peer": room}, {"home": room, "peer": room, "campus": room}}},
		{mode: "remote", order: external.OrderLast, fill: []places{{"peer": room}, {"peer": room, "campus": room}}},
		{mode: "burst", order: external.OrderEqual, fill: []places{{"home": room}}, both: true},
	} { // no order is OrderLast
		t.Run(c.mode+" "+c.order, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			nodes := three(t, c.order)
			kubelets, err := fakenodes.Register(ctx, server.Client, nodes...)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); kubelets.Run(ctx) }()
			ns := "ord-" + c.mode + "-" + c.order + "x"
			namespace(t, server.Client, ns, map[string]string{policy.NamespaceLabel: c.mode})
			defer func() { vacate(t, server, ns); cancel(); <-done }()
			known(t, server, nodes)
			replicas(t, server, ns)
			for i, want := range c.fill {
				if got := placed(t, server, ns, (i+1)*room); !maps.Equal(got, want) {
					t.Fatalf("%d replicas are placed as %v, want %v", (i+1)*room, got, want)
				}
			}
			if c.both {
				if got := placed(t, server, ns, 2*room); got["home"] != room || got["peer"] == 0 || got["campus"] == 0 {
					t.Errorf("%d replicas are placed as %v, want %d at home and the others on both", 2*room, got, room)
				}
			}
		})
	}
}

// testPreference has the real scheduler fill home and three peers with as many replicas as fit on one node, on two and so
// on, by what the namespace prefers. Prices and round trips speak against each other.
func testPreference(t *testing.T, server *apiserver.Server) {
	labels := map[string]map[string]string{
		"near": {policy.PriceLabel: "9", policy.NearnessLabel: "8"},
		"mid":  {policy.PriceLabel: "3", policy.NearnessLabel: "7"},
		"far":  {policy.PriceLabel: "2", policy.NearnessLabel: "0"},
	}
	const few = 10 // fit on each node
	for _, c := range []struct {
		when   policy.When
		prefer policy.Preference
		order  []string // the nodes as they are filled; empty: evenly, all of them
	}{
		{policy.Burst, policy.Cheapest, []string{"home", "far", "mid", "near", "campus"}},
		{policy.Burst, policy.Nearest, []string{"home", "near", "mid", "far", "campus"}},
		{policy.Remote, policy.Cheapest, []string{"far", "mid", "near", "campus"}},
		{policy.Any, policy.Nearest, []string{"home", "near", "mid"}}, // far and campus are alike
		{policy.Burst, policy.Spread, nil},
	} {
		t.Run(fmt.Sprint(c.when, " ", c.prefer), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			nodes := three(t, external.OrderLast)
			peer := nodes[1]
			nodes = append(nodes[:1], nodes[2])
			for name, with := range labels {
				n := peer
				n.Name, n.Labels, n.Pods = name, maps.Clone(peer.Labels), netip.MustParsePrefix(fmt.Sprintf("10.91.%d.0/24", len(nodes)))
				maps.Copy(n.Labels, with)
				n.Labels[corev1.LabelHostname] = name
				nodes = append(nodes, n)
			}
			for i := range nodes {
				nodes[i].Room = maps.Clone(nodes[i].Room)
				nodes[i].Room[corev1.ResourceCPU] = *resource.NewMilliQuantity(few*100, resource.DecimalSI)
			}
			kubelets, err := fakenodes.Register(ctx, server.Client, nodes...)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { defer close(done); kubelets.Run(ctx) }()
			ns := fmt.Sprintf("pref-%s-%s", c.when, c.prefer)
			namespace(t, server.Client, ns, map[string]string{policy.NamespaceLabel: string(c.when), policy.PreferLabel: string(c.prefer)})
			defer func() { vacate(t, server, ns); cancel(); <-done }()
			known(t, server, nodes)
			replicas(t, server, ns)
			if len(c.order) == 0 {
				got := placed(t, server, ns, 2*len(nodes))
				for _, n := range nodes {
					if got[n.Name] != 2 {
						t.Fatalf("%d replicas are placed as %v, want 2 on each of %d", 2*len(nodes), got, len(nodes))
					}
				}
				return
			}
			want := map[string]int{}
			for i, name := range c.order {
				want[name] = few
				if got := placed(t, server, ns, (i+1)*few); !maps.Equal(got, want) {
					t.Fatalf("%d replicas are placed as %v, want %v", (i+1)*few, got, want)
				}
			}
		})
	}
}

// testManyNodes measures what virtual nodes cost the scheduler: as many replicas as fit on ten nodes, with ten and with
// two hundred.
func testManyNodes(t *testing.T, server *apiserver.Server) {
	if os.Getenv("RIVULET_TEST_NODES") == "" {
		t.Skip("measures; needs RIVULET_TEST_NODES=1 and a quiet machine")
	}
	for _, many := range []int{10, 200, 10, 200} {
		ctx, cancel := context.WithCancel(t.Context())
		peer := three(t, external.OrderLast)[1]
		var nodes []fakenodes.Node
		for i := range many {
			n := peer
			n.Name, n.Labels, n.Pods = fmt.Sprintf("peer-%d", i), maps.Clone(peer.Labels), netip.MustParsePrefix(fmt.Sprintf("10.91.%d.0/24", i))
			n.Labels[corev1.LabelHostname] = n.Name
			nodes = append(nodes, n)
		}
		kubelets, err := fakenodes.Register(ctx, server.Client, nodes...)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); kubelets.Run(ctx) }()
		const ns = "many-nodes"
		namespace(t, server.Client, ns, map[string]string{policy.NamespaceLabel: string(policy.Remote)})
		known(t, server, nodes)
		replicas(t, server, ns)
		began := time.Now()
		placed(t, server, ns, 10*room)
		took := time.Since(began)
		t.Logf("%d nodes: %d pods in %s, %s each", many, 10*room, took.Round(time.Millisecond), (took / (10 * room)).Round(10*time.Microsecond))
		vacate(t, server, ns)
		if err := server.Client.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		await.True(t, time.Minute, "the namespace is gone", func() bool {
			_, err := server.Client.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
		cancel()
		<-done
	}
}

// three are home, a peer, and a campus that was added with this order: the nodes as
// Rivulet makes them.
func three(t *testing.T, order string) []fakenodes.Node {
	t.Helper()
	spec, err := external.Spec(external.Config{Settings: external.Settings{Name: "campus", Namespace: "student42", Order: order}, Credential: external.Credential{Server: "https://campus:6443"}})
	if err != nil {
		t.Fatal(err)
	}
	fits := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(room*100, resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	out := []fakenodes.Node{{Name: "home", Architecture: "amd64", Pods: netip.MustParsePrefix("10.90.0.0/24"), Room: fits}}
	for i, id := range []node.Identity{{Name: "peer", Kind: target.Peer}, {Name: "campus", Kind: spec.Kind, After: spec.After}} {
		id.ID, id.Target = id.Name, id.Name
		made := node.Object(id, offer.Offer{Ready: true, Architecture: "amd64", OS: "linux"}, corev1.NodeStatus{}, metav1.Now())
		out = append(out, fakenodes.Node{Name: id.Name, Architecture: "amd64", Labels: made.Labels, Taints: made.Spec.Taints, Pods: netip.MustParsePrefix(fmt.Sprintf("10.90.%d.0/24", i+1)), Room: fits})
	}
	return out
}

// known waits until the scheduler may use every node: it is tainted until a controller
// has seen that it is Ready, and who is first would get what another is to have. A pod
// of no size on each shows what the scheduler knows.
func known(t *testing.T, server *apiserver.Server, nodes []fakenodes.Node) {
	t.Helper()
	pods := server.Client.CoreV1().Pods("default")
	for _, n := range nodes {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe-" + n.Name}, Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "x", Image: "x"}},
			Tolerations: []corev1.Toleration{{Key: policy.VirtualTaint, Operator: corev1.TolerationOpExists}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{n.Name}}}}}}}}}}
		if _, err := pods.Create(t.Context(), probe, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range nodes {
		await.True(t, time.Minute, "the scheduler uses "+n.Name, func() bool {
			p, err := pods.Get(t.Context(), "probe-"+n.Name, metav1.GetOptions{})
			return err == nil && p.Spec.NodeName == n.Name
		})
		if err := pods.Delete(t.Context(), "probe-"+n.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
			t.Fatal(err)
		}
	}
}

// replicas makes a Deployment without any yet, behind a Service.
func replicas(t *testing.T, server *apiserver.Server, ns string) {
	t.Helper()
	label := map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: label},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: label}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{{Name: "web", Image: "web",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("8Mi")}}}}}}}}
	if _, err := server.Client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: label, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := server.Client.CoreV1().Services(ns).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// placed scales to n and returns where the pods are when all of them are somewhere.
func placed(t *testing.T, server *apiserver.Server, ns string, n int) (where map[string]int) {
	t.Helper()
	if _, err := server.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, time.Minute, fmt.Sprintf("%d pods of %s are bound: %v", n, ns, where), func() bool {
		list, err := server.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		where = map[string]int{}
		bound := 0
		for _, p := range list.Items {
			if p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
				where[p.Spec.NodeName]++
				bound++
			}
		}
		return bound == n
	})
	return where
}

// vacate takes the pods and the nodes away for the next case.
func vacate(t *testing.T, server *apiserver.Server, ns string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := server.Client.AppsV1().Deployments(ns).Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Error(err)
	}
	await.True(t, time.Minute, "the pods of "+ns+" are gone", func() bool {
		list, err := server.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	if err := server.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	await.True(t, time.Minute, "the nodes are gone", func() bool {
		list, err := server.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
}
