package reflect

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"rivulet/offload/policy"
	"rivulet/test/harness/await"
)

// silent is a target whose watches tell nothing.
type silent struct {
	*fakeTarget
	client kubernetes.Interface
}

func (s silent) Client() kubernetes.Interface                        { return s.client }
func (silent) Namespace(_ context.Context, h string) (string, error) { return h + "-a", nil }

// A target that has lost power gives the revisions of its last second to other objects, and tells no watch what it has
// lost. When it is back, what is missing there is found and made again, though no watch has told it.
func TestWhatATargetHasLostIsMadeAgain(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	home := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: map[string]string{policy.NamespaceLabel: "burst"}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "conf"}})
	away := fake.NewClientset()
	away.PrependWatchReactor("*", func(clienttesting.Action) (bool, apiwatch.Interface, error) { return true, apiwatch.NewFake(), nil })
	there := func() bool {
		_, err := away.CoreV1().ConfigMaps("lab-a").Get(ctx, "conf", metav1.GetOptions{})
		return err == nil
	}
	log := slog.New(slog.DiscardHandler)
	namespaces, supply := policy.New(home, log), &Supply{}
	target := silent{&fakeTarget{reach: netip.MustParsePrefix("10.70.0.0/16"), changed: make(chan struct{}, 1)}, away}
	running.Go(func() { _ = namespaces.Run(ctx) })
	running.Go(func() {
		if err := Run(ctx, Config{Home: home, Target: target, Namespaces: namespaces, ClusterID: "aid", Supply: supply, Used: (&users{others: true, known: true}).use, Log: log}); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	await.True(t, time.Minute, "the object is reflected", there)
	supply.Renew() // it has the object in its list then, and not only as one that it has made
	await.True(t, time.Minute, "it is known from a list", func() bool {
		one := supply.space("lab")
		if one == nil || one.kinds[policy.KindConfigMap] == nil {
			return false
		}
		_, known := get[*corev1.ConfigMap](one.kinds[policy.KindConfigMap].(*kindReflector[*corev1.ConfigMap]).twin, "lab-a", "conf")
		return known && one.synced()
	})
	if err := away.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), "lab-a", "conf"); err != nil {
		t.Fatal(err)
	}
	all := []policy.Reference{{Object: policy.Object{Kind: policy.KindConfigMap, Namespace: "lab", Name: "conf"}}}
	await.True(t, time.Minute, "without a new list it counts as there", func() bool { return supply.Bring(ctx, all) == nil })
	if there() {
		t.Fatal("the test does not lose it")
	}
	supply.Renew()
	await.True(t, time.Minute, "what the target has lost", there)
}
