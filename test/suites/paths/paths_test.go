package paths

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// Three devices, two of them behind routers of their own: they become peers through
// the third, run pods on each other, and go on whatever happens to the way.
func TestBehindRouters(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	ra, rb := behindRouters(t, ctx)
	a, b, c := suite.Devices["a"], suite.Devices["b"], suite.Devices["c"]

	invited := func(from, to *lab.Device) {
		t.Helper()
		var i api.Invited
		await.NoError(t, ctx, 90*time.Second, from.Name+" makes an invite", func() error {
			out, err := from.Run(ctx, "rivulet", "invite", "-o", "json")
			if err == nil {
				err = json.Unmarshal([]byte(out), &i)
			}
			return err
		})
		await.NoError(t, ctx, 90*time.Second, to.Name+" accepts it", func() error {
			_, err := to.Run(ctx, "rivulet", "peer", "--invite", i.URL)
			return err
		})
	}
	connected := func(d, other *lab.Device) { t.Helper(); connected(t, ctx, d, other) }
	way := func(d, other *lab.Device, want string) { t.Helper(); way(t, ctx, d, other, want) }

	t.Run("each peers with c", func(t *testing.T) {
		invited(c, a)
		invited(c, b)
		connected(a, c)
		connected(b, c)
		way(c, a, "direct 10.77.0.241:")
	})
	t.Run("they peer through c, and find each other", func(t *testing.T) {
		invited(b, a)
		connected(a, b)
		connected(b, a)
		way(a, b, "direct 10.77.0.242:")
		way(b, a, "direct 10.77.0.241:")
		if p := see(t, ctx, b, a); p.Trust.How != peer.TrustInvite {
			t.Errorf("b trusts a by %s", p.Trust.How)
		}
		for _, d := range []*lab.Device{a, b} {
			if err := d.WaitPeered(ctx, 2); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("relayed where they do not reach each other", func(t *testing.T) {
		began := time.Now()
		ra.rules(t, rb.public())
		way(a, b, "relay via c")
		way(b, a, "relay via c")
		connected(a, b)
		t.Logf("relayed after %s", time.Since(began))
		if out := labtest.Must(t, ctx, a, "rivulet", "peers", "-o", "wide"); !strings.Contains(out, "relay") {
			t.Errorf("peers prints\n%s", out)
		}
		if node := labtest.Must(t, ctx, a, "rivulet", "kubectl", "get", "node", "b", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"); node != "True" {
			t.Errorf("b's virtual node on a is Ready: %q", node)
		}
	})
	t.Run("both get another address at once", func(t *testing.T) {
		began := time.Now()
		ra.give(t, 77)
		rb.give(t, 78)
		ra.route(t, ctx)
		rb.route(t, ctx)
		for _, d := range [][2]*lab.Device{{a, b}, {b, a}} {
			await.NoError(t, ctx, 90*time.Second, d[0].Name+" hears "+d[1].Name+" again", func() error {
				if p := see(t, ctx, d[0], d[1]); p.State != peer.Connected || !p.LastSeen.After(began) {
					return fmt.Errorf("%s, last seen %s ago: %s", p.State, time.Since(p.LastSeen), p.Reason)
				}
				return nil
			})
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("back after %s, want 10 s at most", took)
		} else {
			t.Logf("back after %s", took)
		}
	})
	t.Run("a stream where no UDP passes", func(t *testing.T) {
		ra.rules(t, "0.0.0.0")
		way(a, c, "stream 10.77.0.13:7442")
		connected(a, c)
		way(a, b, "relay via c")
		connected(a, b)
		if err := c.Kill(ctx, "supervisor"); err != nil {
			t.Fatal(err)
		}
		gone := time.Now()
		if p := see(t, ctx, a, c); !strings.HasPrefix(p.View.Path, "stream") {
			t.Errorf("without c's supervisor the way is %q", p.View.Path)
		}
		await.NoError(t, ctx, 90*time.Second, "a and b go on through c's tunnel, whose supervisor is gone", func() error {
			if p := see(t, ctx, a, b); p.State != peer.Connected || p.LastSeen.Before(gone.Add(3*time.Second)) {
				return fmt.Errorf("%s, last seen %s ago", p.State, time.Since(p.LastSeen))
			}
			return nil
		})
	})
}

// behindRouters puts a and b behind routers of their own, once for all tests; c is outside, and no two are on one link.
func behindRouters(t *testing.T, ctx context.Context) (ra, rb *router) {
	t.Helper()
	if routers != nil {
		return routers[0], routers[1]
	}
	for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "c"}} {
		if err := suite.Lab.Cut(pair[0], pair[1]); err != nil {
			t.Fatal(err)
		}
	}
	ra, rb = newRouter(t, suite.Devices["a"], 1), newRouter(t, suite.Devices["b"], 2)
	for _, d := range suite.All() {
		if err := d.Plug("eth0", true); err != nil {
			t.Fatal(err)
		}
	}
	ra.route(t, ctx)
	rb.route(t, ctx)
	routers = []*router{ra, rb}
	return ra, rb
}

var routers []*router

func connected(t *testing.T, ctx context.Context, d, other *lab.Device) {
	t.Helper()
	await.NoError(t, ctx, 90*time.Second, d.Name+" is connected with "+other.Name, func() error {
		if p := see(t, ctx, d, other); p.State != peer.Connected {
			return fmt.Errorf("%s: %s", p.State, p.Reason)
		}
		return nil
	})
}

func way(t *testing.T, ctx context.Context, d, other *lab.Device, want string) {
	t.Helper()
	await.NoError(t, ctx, 90*time.Second, fmt.Sprintf("the way of %s to %s is %s", d.Name, other.Name, want), func() error {
		if p := see(t, ctx, d, other); !strings.HasPrefix(p.View.Path, want) {
			return fmt.Errorf("%q of %+v", p.View.Path, p.Paths)
		}
		return nil
	})
}

// see is how a device sees another.
func see(t *testing.T, ctx context.Context, d, other *lab.Device) api.Peer {
	t.Helper()
	out, err := d.Run(ctx, "rivulet", "peers", "-o", "json")
	if err != nil {
		return api.Peer{}
	}
	var list []api.Peer
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, p := range list {
		if p.Name == other.Name {
			return p
		}
	}
	return api.Peer{}
}
