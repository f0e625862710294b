package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"rivulet/fabric/panics"
	"rivulet/offload/consumer/node"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	"rivulet/test/harness/await"
)

// flawed is a target one of whose methods panics, as a flaw in what handles a provider's answers would, until it is mended.
type flawed struct {
	*somewhere
	method string
	mended *atomic.Bool
	hits   *atomic.Int32
}

func (f *flawed) flaw(method string) {
	if f.method == method && !f.mended.Load() {
		f.hits.Add(1)
		var none []int
		_ = none[len(none)]
	}
}

func (f *flawed) Config() *rest.Config { f.flaw("Config"); return f.somewhere.Config() }
func (f *flawed) Twins(ctx context.Context) (map[string]string, error) {
	f.flaw("Twins")
	return f.somewhere.Twins(ctx)
}
func (f *flawed) Offers(ctx context.Context) <-chan offer.Offer {
	f.flaw("Offers")
	out := make(chan offer.Offer, 1)
	go func() {
		ctx, end := context.WithCancelCause(ctx)
		defer func() { offer.End(ctx, out) }()
		defer end(nil)
		select {
		case o := <-f.offers:
			offer.Replace(out, o)
		case <-ctx.Done():
			return
		}
		if f.method == "a line" && !f.mended.Load() {
			f.hits.Add(1)
			end(&panics.Error{Value: "in a line"})
			return
		}
		<-ctx.Done()
	}()
	return out
}

// A panic while anything of one target is handled ends that target's part only: its node is not ready, with the reason,
// and it is started again until it works. The process and other targets go on.
func TestAPanicEndsOneTargetsPart(t *testing.T) {
	for _, method := range []string{"New", "Config", "Twins", "Offers", "a line"} {
		t.Run(method, func(t *testing.T) {
			client := fake.NewClientset()
			// A node of an earlier run, which was ready.
			_, err := client.CoreV1().Nodes().Create(t.Context(), node.Object(node.Identity{Name: "bad", Target: "bad", ID: "bad", Kind: target.Peer, IP: netip.MustParseAddr("127.0.0.1")},
				lends("amd64").Split()[0], corev1.NodeStatus{}, metav1.Now()), metav1.CreateOptions{})
			must(t, err)
			c := started(t, client)
			made := make(chan *somewhere, 100)
			good, bad := (&somewhere{id: "good"}).spec(made, target.Peer), (&somewhere{id: "bad"}).spec(make(chan *somewhere, 100), target.Peer)
			var mended atomic.Bool
			var hits atomic.Int32
			bad.New = func(name string, _ *slog.Logger) (target.Target, error) {
				s := &somewhere{name: name, id: "bad", client: fake.NewClientset(), offers: make(chan offer.Offer, 1), closed: make(chan struct{})}
				s.offers <- lends("amd64")
				f := &flawed{s, method, &mended, &hits}
				f.flaw("New")
				return f, nil
			}
			c.SetTargets(target.Peer, []target.Spec{good, bad}, true)
			(<-made).offers <- lends("amd64")
			state := func(ctx context.Context, name string) (corev1.NodeCondition, error) {
				n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
				if err != nil || len(n.Status.Conditions) == 0 {
					return corev1.NodeCondition{}, err
				}
				return n.Status.Conditions[0], nil
			}
			await.Empty(t, time.Minute, "the other target is ready, and this one is not, with the reason", func(ctx context.Context) string {
				one, err := state(ctx, "good")
				if err != nil {
					return err.Error() // not made yet
				}
				other, err := state(ctx, "bad")
				must(t, err)
				problem := c.Problems()["virtual node of bad"]
				if hits.Load() == 0 || one.Status != corev1.ConditionTrue || other.Status != corev1.ConditionFalse || !strings.Contains(other.Message, "panic: ") || !strings.Contains(problem, "panic: ") {
					return fmt.Sprintf("%d hits; good: %+v; bad: %+v; problem %q", hits.Load(), one, other, problem)
				}
				return ""
			})
			mended.Store(true)
			await.Empty(t, time.Minute, "it is ready again", func(ctx context.Context) string {
				if one, err := state(ctx, "bad"); err != nil || one.Status != corev1.ConditionTrue {
					return fmt.Sprintf("%+v %v", one, err)
				}
				return ""
			})
		})
	}
}

// A target gets at most as many virtual nodes as an offer has platforms, however often it offers others; all targets
// together get at most mostNodes, and further platforms only half of these.
func TestVirtualNodesAreBounded(t *testing.T) {
	client := fake.NewClientset()
	c := started(t, client)
	c.cfg.Missing = time.Hour
	made := make(chan *somewhere, 1)
	spec := (&somewhere{id: "b-id"}).spec(made, target.Peer)
	spec.Name = "b"
	c.SetTargets(target.Peer, []target.Spec{spec}, true)
	b := <-made
	count := func(ctx context.Context) int {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		must(t, err)
		return len(list.Items)
	}
	archs := func(first int) (out []string) {
		for i := range offer.MaxPlatforms {
			out = append(out, fmt.Sprint("a", first+i))
		}
		return out
	}
	b.offers <- lends(archs(0)...)
	await.Empty(t, time.Minute, "a node for each platform", func(ctx context.Context) string {
		if n := count(ctx); n != offer.MaxPlatforms {
			return fmt.Sprint(n)
		}
		return ""
	})
	b.offers <- lends(archs(4)...)
	await.Empty(t, time.Minute, "no more, and a problem says so", func(ctx context.Context) string {
		if problem := c.Problems()["platforms of b"]; !strings.Contains(problem, "no virtual node for linux/a8: b has 8 already") {
			return fmt.Sprint(c.Problems())
		}
		return ""
	})
	if n := count(t.Context()); n != offer.MaxPlatforms {
		t.Errorf("%d nodes", n)
	}
	b.offers <- lends(archs(0)...)
	await.Empty(t, time.Minute, "the problem is over", func(context.Context) string { return c.Problems()["platforms of b"] })

	s, other := &stack{branches: map[offer.Platform]*branch{}}, &stack{branches: map[offer.Platform]*branch{}}
	full := &Consumer{stacks: map[string]*stack{"s": s, "other": other}}
	one := &branches{c: full, s: s, name: "s"}
	for i := range mostNodes {
		if err := one.room(offer.Platform{OS: "linux", Architecture: "a"}); err != nil {
			t.Fatalf("no first node with %d: %v", i, err)
		}
		other.branches[offer.Platform{Architecture: fmt.Sprint(i)}] = nil
	}
	if err := one.room(offer.Platform{}); err == nil {
		t.Errorf("one more than %d", mostNodes)
	}
	other.branches = map[offer.Platform]*branch{}
	s.branches[offer.Platform{}] = nil
	for i := range mostNodes/2 - 1 {
		if err := one.room(offer.Platform{OS: "linux", Architecture: "a"}); err != nil {
			t.Fatalf("no further node with %d: %v", i+1, err)
		}
		other.branches[offer.Platform{Architecture: fmt.Sprint(i)}] = nil
	}
	if err := one.room(offer.Platform{}); err == nil {
		t.Errorf("a further one beside %d", mostNodes/2)
	}
}

// FuzzLine: whatever a line of an offer has, its nodes have valid names and labels, and comparing and writing them is quick.
func FuzzLine(f *testing.F) {
	line, err := json.Marshal(lends("amd64", "arm64"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line, "b", "abcdefgh")
	f.Add([]byte(`{"ready":true,"platforms":[{"os":"linux","architecture":"amd64"},{"os":"linux","architecture":"`+strings.Repeat("a", 63)+`"}]}`), strings.Repeat("b", 70), "")
	f.Add([]byte(`{"ready":true,"os":"linux","architecture":"amd64","allocatable":{"cpu":"1e999999999"}}`), "", "")
	f.Fuzz(func(t *testing.T, line []byte, name, short string) {
		begun := time.Now()
		o, err := offer.Decode(line)
		if err != nil {
			return
		}
		name = node.Name(name, "b-id", short, nil, func(string) bool { return false })
		taken := map[string]bool{name: true}
		was := corev1.NodeStatus{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4")}}
		for _, one := range o.Split() {
			at := node.PlatformName(name, one.Platform(), short, func(n string) bool { return taken[n] })
			taken[at] = true
			n := node.Object(node.Identity{Name: at, Target: name, ID: "b-id", Kind: target.Peer, IP: netip.MustParseAddr("127.0.0.1")}, one, was, metav1.Now())
			if faults := validation.IsDNS1123Label(n.Name); len(faults) > 0 {
				t.Fatalf("node %q: %v", n.Name, faults)
			}
			for key, value := range n.Labels {
				if faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(faults) > 0 {
					t.Fatalf("label %s=%s: %v", key, value, faults)
				}
			}
			if n.Labels[policy.VirtualNodeLabel] != "b-id" || n.Labels[policy.KindLabel] != "peer" {
				t.Fatalf("labels of home: %v", n.Labels)
			}
			for resource, q := range n.Status.Allocatable {
				if had := was.Allocatable[resource]; q.Cmp(had) == 0 && q.Value() != had.Value() {
					t.Fatalf("%s: %v and %v", resource, q, had)
				}
			}
			shrunk(was.Allocatable, one.Allocatable)
			was = n.Status
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Fatalf("it took %v", took)
		}
	})
}
