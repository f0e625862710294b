package network

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// New pods get the MTU of the link, the tunnel follows it at once, and a long
// transfer through the tunnel gets through also between pods that were made when
// the link was another.
func TestMTU(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	mtus := []int{1500, 1400, 9000, 1500}
	for i, mtu := range mtus {
		for _, d := range []*lab.Device{a, b} {
			if err := d.SetMTU("eth0", mtu); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range []*lab.Device{a, b} {
			within(t, ctx, 10*time.Second, fmt.Sprintf("the tunnel of %s follows MTU %d", d.Name, mtu), func(ctx context.Context) error {
				out, err := d.Run(ctx, "cat", "/sys/class/net/riv0/mtu")
				if want := fmt.Sprintf("%d\n", mtu-80); err == nil && out != want {
					err = fmt.Errorf("riv0 has %s, want %s", strings.TrimSpace(out), want)
				}
				return err
			})
		}
		if i > 0 {
			transfer(t, ctx, fmt.Sprintf("between pods from before, MTU %d", mtu))
			labtest.Kubectl(t, ctx, a, "delete", "pod", "one", "--wait")
			labtest.Kubectl(t, ctx, b, "delete", "pod", "two", "--wait")
		}
		if i == len(mtus)-1 {
			break // as at the start
		}
		pod(t, ctx, a, "one")
		pod(t, ctx, b, "two")
		for name, d := range map[string]*lab.Device{"one": a, "two": b} {
			if got := labtest.Kubectl(t, ctx, d, "exec", name, "--", "busybox", "cat", "/sys/class/net/eth0/mtu"); got != fmt.Sprint(mtu) {
				t.Errorf("a pod on %s has MTU %s, the link %d", d.Name, got, mtu)
			}
		}
		transfer(t, ctx, fmt.Sprintf("between new pods, MTU %d", mtu))
	}
}

// transfer fetches some megabytes from pod two on b in pod one on a, and back.
func transfer(t *testing.T, ctx context.Context, what string) {
	t.Helper()
	const bytes = 8 << 20
	for _, way := range []struct {
		from, to *lab.Device
		pod, by  string
	}{{b, a, "two", "one"}, {a, b, "one", "two"}} {
		addr := through(t, ctx, way.to, way.from, labtest.Kubectl(t, ctx, way.from, "get", "pod", way.pod, "-o", "jsonpath={.status.podIP}"))
		url := fmt.Sprintf("http://%s:8080/bytes?n=%d", addr, bytes)
		within(t, ctx, 20*time.Second, fmt.Sprintf("%s: 8 MiB from %s to %s", what, way.from.Name, way.to.Name), func(ctx context.Context) error {
			out, err := way.to.Kubectl(ctx, "exec", way.by, "--", "web", "count", url)
			if err == nil && strings.TrimSpace(out) != fmt.Sprint(bytes) {
				err = fmt.Errorf("%s bytes arrived", strings.TrimSpace(out))
			}
			return err
		})
	}
}
