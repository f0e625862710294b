package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	storageutil "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/fit"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakewatch"
)

func node(name, arch, cpu string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelArchStable: arch}},
		Spec:       corev1.NodeSpec{Taints: policy.NodeTaints(false)},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("3")}},
	}
}

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		SchedulerName: corev1.DefaultSchedulerName, Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func asks(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

func TestPlace(t *testing.T) {
	big, arm := node("host", "amd64", "1"), node("host-arm64", "arm64", "1")
	full := node("host", "amd64", "1")
	full.Spec.Unschedulable = true
	lost := node("b", "amd64", "1")
	lost.Labels[policy.TargetLabel] = "b"
	lost.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "no answer for 40 s"}}
	third := node("c", "amd64", "1")
	third.Labels[policy.TargetLabel] = "c"
	image := func(p *corev1.Pod) { p.Spec.Containers[0].Image = "lab/app:1" }
	owned := func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{UID: "o1"}} }
	learnt := map[string]string{fit.Key("lab/app:1"): "amd64", fit.Key("@owner/o1"): "c"}
	closed := node("host", "amd64", "1")
	closed.Spec.Taints = append(closed.Spec.Taints, corev1.Taint{Key: policy.WithdrawnTaint, Effect: corev1.TaintEffectNoSchedule})
	peer := node("b", "amd64", "4")
	peer.Labels[policy.KindLabel] = string(target.Peer)
	stays := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			asks(cpu)(p)
			p.Labels = map[string]string{policy.NamespaceLabel: string(policy.Off)}
		}
	}
	arch := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: "arm64"} }
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		nodes []*corev1.Node
		want  string // the node, or what the reason has after !
	}{
		{"one node", pod("a", nil), []*corev1.Node{big}, "host"},
		{"the first of two", pod("a", nil), []*corev1.Node{big, arm}, "host"},
		{"a platform", pod("a", arch), []*corev1.Node{big, arm}, "host-arm64"},
		{"no such platform", pod("a", arch), []*corev1.Node{big}, "!does not match"},
		{"none", pod("a", nil), nil, "!has no node"},
		{"cordoned", pod("a", nil), []*corev1.Node{full}, "!cordoned"},
		{"not reached", pod("a", nil), []*corev1.Node{lost, third}, "c"},
		{"none is reached", pod("a", nil), []*corev1.Node{lost}, "!b: it is not ready: no answer for 40 s"},
		{"an image of the other platform", pod("a", image), []*corev1.Node{big, arm}, "host-arm64"},
		{"an image of no platform that is left", pod("a", image), []*corev1.Node{big}, "!image lab/app:1 did not run on amd64"},
		{"refused by a target", pod("a", owned), []*corev1.Node{third}, "!it refused such a pod"},
		{"refused by another", pod("a", owned), []*corev1.Node{third, big}, "host"},
		{"withdrawn", pod("a", nil), []*corev1.Node{closed}, "!" + policy.WithdrawnTaint},
		{"too big", pod("a", asks("2")), []*corev1.Node{big}, "!too little cpu: the pod asks for 2, 1 is left"},
		{"the host is full, a further node has room", pod("a", asks("2")), []*corev1.Node{big, peer}, "b"},
		{"its label keeps it on the host", pod("a", stays("2")), []*corev1.Node{big, peer}, "!b: label rivulet.dev/offload=off keeps the pod on the host"},
		{"its label does not keep it off the host", pod("a", stays("1")), []*corev1.Node{big, peer}, "host"},
		{"what no node has", pod("a", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		}), []*corev1.Node{big}, "!too little nvidia.com/gpu"},
		{"the cluster's own namespace", pod("a", func(p *corev1.Pod) { p.Namespace = "kube-system" }), []*corev1.Node{big}, "!namespace kube-system"},
	} {
		t.Run(c.name, func(t *testing.T) {
			free := map[string]corev1.ResourceList{}
			for _, n := range c.nodes {
				free[n.Name] = n.Status.Allocatable
			}
			known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			if err := known.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fit.Namespace, Name: fit.Name}, Data: learnt}); err != nil {
				t.Fatal(err)
			}
			b := &binder{fit: corelisters.NewConfigMapLister(known)}
			got, why := place(c.pod, c.nodes, free, b.shut(c.pod, c.nodes))
			if want, refused := strings.CutPrefix(c.want, "!"); refused && (got != "" || !strings.Contains(why, want)) || !refused && got != want {
				t.Errorf("%q %q, want %q", got, why, c.want)
			}
		})
	}
}

// bindable has a client bind pods as an API server does.
func bindable(client *fake.Clientset) {
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		o, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p := o.(*corev1.Pod).DeepCopy()
		if p.UID != b.UID || p.Spec.NodeName != "" {
			return true, nil, fmt.Errorf("%s is bound to %q", p.Name, p.Spec.NodeName)
		}
		p.Spec.NodeName = b.Target.Name
		return true, b, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, b.Namespace)
	})
}

// noRules is for pods without rules about others.
type noRules struct{}

func (noRules) Beside(context.Context, []corev1.Namespace, []*corev1.Pod, []*corev1.Node) (Evaluator, error) {
	return nil, errors.New("nobody has rules")
}

// oneEach lets one pod run on each node.
type oneEach struct {
	t    *testing.T
	made *atomic.Int32 // evaluators
}

func (r oneEach) Beside(_ context.Context, _ []corev1.Namespace, others []*corev1.Pod, nodes []*corev1.Node) (Evaluator, error) {
	r.made.Add(1)
	out := taken{}
	for _, q := range others {
		if !slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return n.Name == q.Spec.NodeName }) {
			r.t.Errorf("%s is on %q", q.Name, q.Spec.NodeName)
		}
		out[q.Spec.NodeName] = "one is there"
	}
	return out, nil
}

// taken are nodes on which a pod is.
type taken map[string]string

func (n taken) Refuse(_ context.Context, p *corev1.Pod) (map[string]string, error) {
	if p.Name == "odd" {
		panic("no such node")
	}
	return n, nil
}

// apart is a pod that requires anti-affinity.
func apart(priority int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Priority = &priority
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: make([]corev1.PodAffinityTerm, 1)}}
	}
}

// A pass reads the namespaces once, and the pods again only after one was bound; without required rules it reads nothing.
func TestRulesAreReadOncePerPass(t *testing.T) {
	prefers := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: make([]corev1.WeightedPodAffinityTerm, 1)}}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.ScheduleAnyway}}
	}
	for name, c := range map[string]struct {
		change      func(*corev1.Pod)
		made, lists int
	}{
		"required":  {apart(1), 2, 1}, // the first is bound, the others wait
		"preferred": {prefers, 0, 0},
	} {
		client := fake.NewClientset()
		pods, nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(nodes.Add(node("b", "amd64", "1")))
		for _, p := range []string{"one", "two", "three", "four"} {
			p := pod(p, c.change)
			must(pods.Add(p))
			must(client.Tracker().Add(p))
		}
		bindable(client)
		rules := oneEach{t, new(atomic.Int32)}
		b := &binder{client: client, pods: corelisters.NewPodLister(pods), nodes: corelisters.NewNodeLister(nodes), fit: corelisters.NewConfigMapLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})),
			rules: rules, events: &record.FakeRecorder{}, bound: map[types.UID]string{}, leaving: map[types.UID]bool{}}
		b.pass(t.Context())
		lists := 0
		for _, a := range client.Actions() {
			if a.Matches("list", "namespaces") {
				lists++
			}
		}
		if made := int(rules.made.Load()); made != c.made || lists != c.lists || len(b.bound) == 0 {
			t.Errorf("%s: %d evaluators, %d lists of namespaces, bound %v; want %d and %d", name, made, lists, b.bound, c.made, c.lists)
		}
	}
}

// Rules about other pods count with the pods that the binder has bound itself, and before room is made for a pod. A pod
// whose rules cannot be judged waits, and nobody else for it.
func TestRulesBetweenPods(t *testing.T) {
	low := pod("low", asks("900m"))
	low.Spec.NodeName = "c"
	lost := pod("lost", apart(0))
	lost.Spec.NodeName = "gone"
	client := fake.NewClientset(node("b", "amd64", "1"), node("c", "amd64", "1"), low, lost, pod("odd", apart(10)), pod("one", apart(9)), pod("two", apart(8)))
	bindable(client)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = bind(ctx, client, oneEach{t, new(atomic.Int32)}) }()
	defer func() { cancel(); <-done }()
	await.NoError(t, t.Context(), time.Minute, "the second waits, and nobody leaves for it", func() error {
		one, err := client.CoreV1().Pods("lab").Get(ctx, "one", metav1.GetOptions{})
		if err != nil || one.Spec.NodeName != "b" {
			return fmt.Errorf("%+v %w", one, err)
		}
		two, err := client.CoreV1().Pods("lab").Get(ctx, "two", metav1.GetOptions{})
		if err != nil || two.Spec.NodeName != "" || len(two.Status.Conditions) != 1 || two.Status.Conditions[0].Message != "no node takes the pod: b: one is there; c: one is there" {
			return fmt.Errorf("%+v %w", two, err)
		}
		odd, err := client.CoreV1().Pods("lab").Get(ctx, "odd", metav1.GetOptions{})
		if err != nil || odd.Spec.NodeName != "" || len(odd.Status.Conditions) != 1 || !strings.Contains(odd.Status.Conditions[0].Message, "panic: no such node") {
			return fmt.Errorf("%+v %w", odd, err)
		}
		_, err = client.CoreV1().Pods("lab").Get(ctx, "low", metav1.GetOptions{})
		return err
	})
}

// TestBind: pods that wait are bound while there is room, the most important first; the others
// are told, and get the room of what ends.
func TestBind(t *testing.T) {
	when := metav1.NewTime(time.Unix(1, 0))
	old := func(p *corev1.Pod) { asks("600m")(p); p.CreationTimestamp = when }
	host := node("host", "amd64", "1")
	host.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("9")
	client := fake.NewClientset(host,
		pod("runs", func(p *corev1.Pod) { asks("300m")(p); p.Spec.NodeName = "host" }),
		pod("over", func(p *corev1.Pod) { asks("900m")(p); p.Spec.NodeName = "host"; p.Status.Phase = corev1.PodSucceeded }),
		pod("first", old),
		pod("urgent", func(p *corev1.Pod) { asks("600m")(p); p.Spec.Priority = ptr.To[int32](9) }),
		pod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}} }),
		pod("other", func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }),
		pod("claims", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		}),
		pod("leaves", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "old"}}}}
		}),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "old", DeletionTimestamp: &when, Finalizers: []string{"kubernetes.io/pvc-protection"}},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To(Class), VolumeName: "v1"}},
		pod("path", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "task"}}}}
		}),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "task"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("manual"), VolumeName: "task-pv"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "task-pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/mnt/data"}}}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To(Class)}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: Class}, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)},
	)
	bindable(client)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = bind(ctx, client, noRules{}) }()
	defer func() { cancel(); <-done }()

	state := func() (bound, told string) {
		list, err := client.CoreV1().Pods("lab").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if p.Spec.NodeName != "" {
				bound += " " + p.Name
			}
			for _, c := range p.Status.Conditions {
				if strings.Contains(c.Message, "too little cpu") || strings.Contains(c.Message, `persistentvolumeclaim "old" is being deleted`) ||
					strings.Contains(c.Message, "volume task-pv (hostPath), and a virtual cluster has no machines that could mount it; make the claim again with storageClassName: local-path") {
					told += " " + p.Name
				}
			}
		}
		return bound, told
	}
	becomes := func(bound, told string) {
		t.Helper()
		await.NoError(t, t.Context(), time.Minute, "all have their place", func() error {
			if b, w := state(); b != bound || w != told {
				return fmt.Errorf("bound%s, told%s; want%s,%s", b, w, bound, told)
			}
			return nil
		})
	}
	becomes(" claims over runs urgent", " first leaves path")
	fakewatch.Open(t, client, "pods")
	claim, err := client.CoreV1().PersistentVolumeClaims("lab").Get(ctx, "data", metav1.GetOptions{})
	if err != nil || claim.Annotations[storageutil.AnnSelectedNode] != "host" {
		t.Errorf("the claim has %v (%v)", claim.Annotations, err)
	}
	if err := client.CoreV1().Pods("lab").Delete(ctx, "urgent", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(" claims first over runs", " first leaves path")
}
