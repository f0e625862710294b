package hostile

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/suites/hostile/attacker"
)

// A stranger on the LAN and a consumer send requests without number with large headers, and take no answer: the victim's
// supervisor stays small and is the same process, another consumer is served, and the honest neighbour stays connected.
func TestListenersCostLittle(t *testing.T) {
	ctx := suite.Bounded(t, 8*time.Minute)
	p, other := consumer(t, ctx, "mallory", "10.77.0.78"), consumer(t, ctx, "trudy", "10.77.0.79")
	pid, before := supervisor(t, ctx)
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	flood := func(dial func(context.Context, string, string) (net.Conn, error), addr, path string) (begun int) {
		for range 60 {
			c, err := dial(ctx, "tcp", addr)
			if err != nil {
				continue // it is one too many
			}
			held = append(held, c)
			if p.Flood(c, path, 250) == nil {
				begun++
			}
		}
		return begun
	}
	if n := flood(p.Attacker.Dial, net.JoinHostPort(victimAddr, strconv.Itoa(attacker.Port)), "/v1/peering"); n > 0 {
		t.Errorf("%d connections with HTTP/2 from the LAN", n)
	}
	if n := flood(p.Dial, p.Control(), "/v1/offer"); n == 0 {
		t.Error("not judged: a peer has no HTTP/2")
	}
	flood(p.Dial, p.Control(), "/k8s/api/v1/pods?watch=true")
	now, most := supervisor(t, ctx)
	t.Logf("%d MiB before, %d MiB at most", before, most)
	if most-before > 96 { // what the collector has not returned counts
		t.Errorf("the supervisor has grown by %d MiB", most-before)
	}
	await.NoError(t, ctx, time.Minute, "what is held is small", func() error {
		if _, after := supervisor(t, ctx); after-before > 32 {
			return fmt.Errorf("the supervisor has grown by %d MiB", after-before)
		}
		return nil
	})
	if r, err := other.Do(ctx, "GET", "/v1/ping", nil, nil); err != nil || r.Status > 299 {
		t.Errorf("another consumer: %v, %v", r, err)
	}
	for _, q := range labtest.Status(t, ctx, victim).Peers {
		if q.Name == "b" && q.State != peer.Connected {
			t.Errorf("the honest neighbour is %s: %s", q.State, q.Reason)
		}
	}
	if now != pid {
		t.Error("the supervisor is another process")
	}
}
