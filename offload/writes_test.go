package offload

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/apicount"
	"rivulet/test/harness/await"
	"rivulet/test/harness/fakenodes"
)

// What the API servers of both sides are asked to store for one away pod, from its
// creation until it is gone: by its Deployment, the scheduler, the stand-in kubelet,
// garbage collection, quotas, events and Rivulet together. TestWritesOfManyPods tells
// what they are; a pod that runs on its own cluster has 12 to 14.
const (
	writesAtHome     = 16
	writesAtProvider = 18
)

// writes bounds what many pods have both API servers write. A watch that answers
// itself, a status that never settles, or two writers that disagree would pass all
// other tests, and wear out a device's flash.
func (d *device) writes(t *testing.T, b *device, pods int) {
	sides := []*device{d, b}
	limits := []int{writesAtHome, writesAtProvider}
	before := d.calm(t, sides)
	d.create(t, web(int32(pods)))
	await.Empty(t, 3*time.Minute, fmt.Sprintf("%d pods run", pods), func(ctx context.Context) string {
		return d.allRun(t, b, pods)
	})
	running := d.calm(t, sides)
	rests(t, sides, running)
	foreground := metav1.DeletePropagationForeground
	must(t, d.Client.AppsV1().Deployments("lab").Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	await.Empty(t, 3*time.Minute, "all gone", func(ctx context.Context) string {
		if n := len(d.pods(ctx, t, "app=web")); n > 0 {
			return fmt.Sprintf("%d at home", n)
		}
		return ""
	})
	after := d.calm(t, sides)
	for i, side := range sides {
		whole := after[i].Since(before[i])
		t.Logf("%s, each pod until it runs: %s", side.name, running[i].Since(before[i]).Each(pods))
		t.Logf("%s, each pod until it is gone: %s", side.name, whole.Each(pods))
		if each := float64(whole.Sum()) / float64(pods); each > float64(limits[i]) {
			t.Errorf("the API server of %s is asked for %.1f writes a pod, more than %d", side.name, each, limits[i])
		}
	}
}

// calm waits until nothing is written on any side, and counts.
func (d *device) calm(t *testing.T, sides []*device) (now []apicount.Counts) {
	t.Helper()
	var last []apicount.Counts
	var since time.Time
	await.Empty(t, 2*time.Minute, "nothing is written for 2 s", func(ctx context.Context) string {
		last, now = now, nil
		for _, side := range sides {
			now = append(now, side.stored(ctx, t))
		}
		for i := range last {
			if more := now[i].Since(last[i]); more.Sum() > 0 {
				since = time.Now()
				return fmt.Sprintf("%s writes %v", sides[i].name, more)
			}
		}
		if last == nil {
			since = time.Now()
		}
		if quiet := time.Since(since); quiet < 2*time.Second {
			return fmt.Sprintf("quiet for %s", quiet)
		}
		return ""
	})
	return now
}

// rests looks for writes where there is nothing to be written.
func rests(t *testing.T, sides []*device, before []apicount.Counts) {
	time.Sleep(8 * time.Second) // that nothing is written in this time is the point
	for i, side := range sides {
		if more := side.stored(t.Context(), t).Since(before[i]); more.Sum() > 0 {
			t.Errorf("with all pods running and nobody doing anything %s writes %v", side.name, more)
		}
	}
}

// stored leaves out what keeps a cluster alive whether or not pods are away: the API
// server's own Endpoints, which it cannot write on the loopback and tries again, and
// the twin's rights, which a provider applies again when it is asked for the twin.
func (d *device) stored(ctx context.Context, t *testing.T) apicount.Counts {
	t.Helper()
	all, err := apicount.Writes(ctx, d.Client)
	must(t, err)
	return all.Without("leases", "nodes", "endpoints", "rolebindings", "serviceaccounts")
}

// TestWritesOfManyPods is the measurement behind the bounds, with any number of pods.
func TestWritesOfManyPods(t *testing.T) {
	pods := number("RIVULET_TEST_WRITES", 0)
	if pods == 0 {
		t.Skip("needs RIVULET_TEST_WRITES, a number of pods; TestGiveAndTakeBack does it with few")
	}
	a, b := world(t)
	big(t, b, pods)
	a.offloadNamespace(t, "lab")
	a.ready(t, true)
	a.writes(t, b, pods)
}

// big gives d a hollow node with room for the pods.
func big(t *testing.T, d *device, pods int) {
	ctx, cancel := context.WithCancel(context.Background())
	kept, err := fakenodes.Register(ctx, d.Client, fakenodes.Node{Name: "big", Architecture: "arm64", Pods: netip.MustParsePrefix("10.42.128.0/18"),
		Room: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"),
			corev1.ResourcePods: *resource.NewQuantity(int64(pods)+100, resource.DecimalSI), corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")}})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err == nil {
			kept.Run(ctx)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	must(t, err)
}
