package hostile

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
)

// A consumer that names 20,000 endpoints on another peer gains nothing: its pods that
// start then are held, another consumer's are untouched, and the owner sees it.
func TestEndpointsWithoutNumberOpenNothing(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	mallory, eve := consumer(t, ctx, "mallory", "10.77.0.70"), consumer(t, ctx, "eve", "10.77.0.71")
	mine := own(t, ctx, victim, "mine")
	bad, good := mallory.Kubernetes(ctx), eve.Kubernetes(ctx)
	badTwin, goodTwin := mallory.Twin(ctx, "lab"), eve.Twin(ctx, "lab")
	first := run(t, ctx, good, goodTwin, pod("first"))
	second := run(t, ctx, good, goodTwin, pod("second"))
	// Eve is the peer that mallory's endpoints are on.
	there := mallory.As
	if there.Contains(eve.As.Addr()) {
		t.Fatalf("both are seen as %s", there)
	}
	there = eve.As
	for i := range 20 {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("many-", i), Labels: map[string]string{"rivulet.dev/reflected": "true", discoveryv1.LabelServiceName: "many"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{}}}
		a := there.Addr().As4()
		for n := range 1000 {
			a[3] = byte(n % 250)
			a[2] = byte(n/250 + 4*i)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4(a).String()}})
		}
		await.NoError(t, ctx, time.Minute, "slice "+s.Name+" is written", func() error {
			_, err := bad.DiscoveryV1().EndpointSlices(badTwin).Create(ctx, s, metav1.CreateOptions{})
			return err
		})
	}
	late := run(t, ctx, bad, badTwin, pod("late"))
	other := run(t, ctx, bad, badTwin, pod("other"))
	sibling, neighbour := at(other, 8080), at(second, 8080) // what the pods may reach
	shut(t, ctx, badTwin, "late", sibling, at(mine, 8080), at(first, 8080), address(mine.Status.HostIP, 6443), address(mine.Status.HostIP, 10250),
		address(victimAddr, 6443), address(victimAddr, 10250), address("10.43.0.1", 443), address(honestAddr, 7442))
	shut(t, ctx, goodTwin, "first", neighbour, at(late, 8080))
	// Nor does it help to name them as pods of its own elsewhere: so many are refused, and
	// of fewer none counts that eve has not confirmed.
	for n, want := range map[int]int{3000: http.StatusBadRequest, 900: http.StatusNoContent} {
		addrs := make([]netip.Addr, n)
		for i, a := 0, eve.As.Addr(); i < n; i++ {
			a = a.Next()
			addrs[i] = a
		}
		r, err := mallory.Do(ctx, http.MethodPut, "/v1/elsewhere", map[string]any{eve.ID: addrs}, nil)
		if err != nil || r.Status/100 != want/100 {
			t.Errorf("%d addresses elsewhere: %v %v, want %d", n, r, err, want)
		}
	}
	for _, p := range labtest.Status(t, ctx, victim).Health {
		if p.Code == "offload" && strings.HasPrefix(p.Subject, "isolation of tenants") {
			t.Errorf("isolation suffers: %s: %s", p.Subject, p.Text)
		}
	}
	shut(t, ctx, badTwin, "late", sibling, address(victimAddr, 6443))
	shut(t, ctx, goodTwin, "first", neighbour, at(late, 8080))
}

// Where isolation cannot be made a pod of another cluster has no network and does not
// start, and this cluster's own do.
func TestNoNetworkWhileNobodyIsolates(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	mallory := consumer(t, ctx, "mallory", "10.77.0.72")
	bad, twin := mallory.Kubernetes(ctx), mallory.Twin(ctx, "lab")
	before := run(t, ctx, bad, twin, pod("before"))
	node := []netip.AddrPort{address(victimAddr, 6443), address(victimAddr, 10250)}
	// Rules that somebody flushes are back before a pod can make use of it.
	for i := range 3 {
		labtest.Must(t, ctx, victim, "nft", "flush", "ruleset")
		name := fmt.Sprint("flushed-", i)
		flushed := run(t, ctx, bad, twin, pod(name))
		shut(t, ctx, twin, name, at(before, 8080), node...)
		shut(t, ctx, twin, "before", at(flushed, 8080), node...)
	}
	// The kernel shows packets between pods to no rule, and does not let that be put back.
	const bridged = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	labtest.Must(t, ctx, victim, "sh", "-c", "mount --bind "+bridged+" "+bridged+" && echo 0 >"+bridged+" && mount -o remount,bind,ro "+bridged)
	free := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		labtest.Must(t, ctx, victim, "umount", bridged)
	})
	t.Cleanup(free)
	await.NoError(t, ctx, time.Minute, "pod late is made", func() error {
		_, err := bad.CoreV1().Pods(twin).Create(ctx, pod("late"), metav1.CreateOptions{})
		return err
	})
	await.NoError(t, ctx, 90*time.Second, "the refusal is an event", func() error {
		out, err := victim.Kubectl(ctx, "get", "events", "-n", twin, "--field-selector", "reason=FailedCreatePodSandBox", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "modprobe br_netfilter") {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	own(t, ctx, victim, "mine") // this cluster's own pods start
	if p, err := bad.CoreV1().Pods(twin).Get(ctx, "late", metav1.GetOptions{}); err != nil || p.Status.PodIP != "" {
		t.Errorf("a pod that nothing isolates has %v %v", p.Status.PodIPs, err)
	}
	free()
	await.NoError(t, ctx, 2*time.Minute, "the pod starts when it can be isolated", func() error {
		p, err := bad.CoreV1().Pods(twin).Get(ctx, "late", metav1.GetOptions{})
		if err == nil && p.Status.PodIP == "" {
			err = fmt.Errorf("%s", p.Status.Phase)
		}
		return err
	})
	shut(t, ctx, twin, "late", at(before, 8080), node...)
}
