package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
)

// somewhere is a target that is no peer: it lends what it is told to.
type somewhere struct {
	name, id string
	client   kubernetes.Interface
	offers   chan offer.Offer
	closed   chan struct{}
}

func (s *somewhere) Name() string                                             { return s.name }
func (s *somewhere) ID() string                                               { return s.id }
func (s *somewhere) Client() kubernetes.Interface                             { return s.client }
func (s *somewhere) Config() *rest.Config                                     { return &rest.Config{Host: "http://127.0.0.1:1"} }
func (s *somewhere) Namespace(_ context.Context, home string) (string, error) { return home, nil }
func (s *somewhere) Twins(context.Context) (map[string]string, error)         { return nil, nil }
func (s *somewhere) Gone(context.Context, string) (bool, error)               { return true, nil }
func (s *somewhere) Release(context.Context, string) error                    { return nil }
func (s *somewhere) Offers(context.Context) <-chan offer.Offer                { return s.offers }
func (s *somewhere) Home(a netip.Addr) (netip.Addr, bool)                     { return a, true }
func (s *somewhere) Away(a netip.Addr) (netip.Addr, bool)                     { return a, true }
func (s *somewhere) Close()                                                   { close(s.closed) }
func (s *somewhere) spec(made chan<- *somewhere, kind target.Kind) target.Spec {
	return target.Spec{ID: s.id, Name: s.id, Short: "short", Kind: kind, After: true, Key: "one",
		New: func(name string, _ *slog.Logger) (target.Target, error) {
			t := &somewhere{name: name, id: s.id, client: fake.NewClientset(), offers: make(chan offer.Offer, 1), closed: make(chan struct{})}
			made <- t
			return t, nil
		}}
}

// started runs the targets of a Consumer whose home is the client.
func started(t *testing.T, client kubernetes.Interface) *Consumer {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	c, err := New(Config{Home: &rest.Config{Host: "http://127.0.0.1:1"}, ID: "home", Host: "home", NodeIP: netip.MustParseAddr("127.0.0.1"), HandBack: time.Hour, Missing: time.Second, Log: log})
	must(t, err)
	c.home, c.policy, c.recorder = client, policy.New(client, log), record.NewFakeRecorder(100)
	c.volumes = c.newVolumes()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.policy.Run(ctx) }()
	stopped := make(chan struct{})
	go func() { defer close(stopped); c.runTargets(ctx) }()
	t.Cleanup(func() { cancel(); <-done; <-stopped })
	return c
}

// Any kind of target gets a virtual node, by the same engine as peers, and loses it
// when it is none any more.
func TestTargetsOfAnyKind(t *testing.T) {
	stray := func(name, id, kind string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{policy.VirtualNodeLabel: id, policy.KindLabel: kind}}, Spec: corev1.NodeSpec{ProviderID: "rivulet://" + id}}
	}
	forged := stray("worker", "campus", "burst") // its kubelet has written a label
	forged.Spec.ProviderID = ""
	client := fake.NewClientset(stray("old-peer", "x", "peer"), stray("old-campus", "y", "burst"), forged)
	o := started(t, client)
	nodes := func(ctx context.Context) []string {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		must(t, err)
		var names []string
		for _, n := range list.Items {
			if n.Name == "worker" {
				if len(n.Spec.Taints) > 0 || len(n.Status.Conditions) > 0 {
					t.Errorf("a node that is none of ours was changed: %+v", n)
				}
				continue
			}
			names = append(names, n.Name)
		}
		slices.Sort(names)
		if len(names) == len(list.Items) {
			t.Error("a node that is none of ours was removed")
		}
		return names
	}
	want := func(what string, names ...string) {
		t.Helper()
		await.Empty(t, time.Minute, what, func(ctx context.Context) string {
			if got := nodes(ctx); !slices.Equal(got, names) {
				return fmt.Sprintf("nodes %v, want %v", got, names)
			}
			return ""
		})
	}
	made := make(chan *somewhere, 10)
	campus := (&somewhere{id: "campus"}).spec(made, "burst")
	lends := offer.Offer{Ready: true, Architecture: "amd64", OS: "linux", KubeVersion: "v1",
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}}

	o.SetTargets("burst", []target.Spec{campus}, false)
	first := <-made
	first.offers <- lends
	want("what is not said to be all removes nothing", "campus", "old-campus", "old-peer")
	n, err := client.CoreV1().Nodes().Get(t.Context(), "campus", metav1.GetOptions{})
	must(t, err)
	if n.Labels[policy.KindLabel] != "burst" || n.Labels[policy.After] != "true" || n.Status.Allocatable.Cpu().Value() != 8 {
		t.Errorf("%v %v", n.Labels, n.Status.Allocatable)
	}
	o.SetTargets("burst", []target.Spec{campus}, true)
	want("all of a kind were told: the stray of that kind goes", "campus", "old-peer")

	campus.Key = "two"
	o.SetTargets("burst", []target.Spec{campus}, true)
	second := <-made // made anew: the Key is another
	<-first.closed
	second.offers <- lends
	o.SetTargets(target.Peer, nil, false)
	want("what a target is built on may change; peers that are not known yet lose nothing", "campus", "old-peer")

	o.SetTargets("burst", nil, true)
	<-second.closed
	want("a target that is none any more", "old-peer")
	o.SetTargets(target.Peer, nil, true)
	want("the last stray")

	broken := campus
	broken.ID, broken.New = "broken", func(string, *slog.Logger) (target.Target, error) { return nil, errors.New("no such campus") }
	o.SetTargets("burst", []target.Spec{broken}, true)
	await.Empty(t, time.Minute, "a target that cannot be made is a problem", func(context.Context) string {
		if p := o.Problems()["virtual node of campus"]; p != "no such campus" {
			return fmt.Sprint(o.Problems())
		}
		return ""
	})
}

// A target that was never reached has no pods of home: it makes room for others. One whose nodes are not loaded yet may
// have some.
func TestATargetThatWasNeverReachedIsNotInUse(t *testing.T) {
	later := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "later", Labels: map[string]string{policy.VirtualNodeLabel: "later", policy.KindLabel: string(target.Peer)}},
		Spec: corev1.NodeSpec{ProviderID: "rivulet://later"}}
	c := &Consumer{home: fake.NewClientset(later), stacks: map[string]*stack{}}
	for _, id := range []string{"never", "later"} {
		c.stacks[id] = &stack{spec: target.Spec{ID: id, Kind: target.Peer}}
	}
	if used, known := c.InUse(t.Context(), target.Peer); !known || !maps.Equal(used, map[string]bool{"later": true}) {
		t.Errorf("%v, known: %v", used, known)
	}
	if nodes, used, err := c.Existing(t.Context(), target.Peer); err != nil || !maps.Equal(nodes, used) || !nodes["later"] {
		t.Errorf("%v %v %v", nodes, used, err)
	}
	if !c.Busy("never") || !c.Busy("unknown") {
		t.Error("a target whose pods are not known is idle")
	}
}
