package hostile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/suites/hostile/attacker"
)

// While the honest peer is away and forgotten, an attacker tells its public WireGuard key,
// as its present key and as its next. It has it until the owner comes back and proves it.
func TestAPreclaimedKeyGoesToItsOwner(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	with := func(d *lab.Device, name string) (v peer.View) {
		t.Helper()
		for _, p := range labtest.Status(t, ctx, d).Peers {
			if p.Name == name || string(p.ID) == name {
				v = p
			}
		}
		return v
	}
	before := with(victim, "b")
	if before.State != peer.Connected {
		t.Fatalf("the honest peer is %s: %s", before.State, before.Reason)
	}
	for i, field := range []string{"wireguardKey", "nextWireGuardKey"} {
		if err := honest.Kill(ctx, "supervisor"); err != nil {
			t.Fatal(err)
		}
		labtest.Must(t, ctx, victim, "rivulet", "unpeer", "b", "--force", "--forget", "--yes")
		mallory := attacker.New(t, suite.Lab, "mallory", fmt.Sprintf("10.77.0.%d", 82+i))
		rid(t, ctx, mallory)
		await.NoError(t, ctx, time.Minute, "the claim as "+field+" is taken", func() error {
			m := mallory.Message()
			m[field] = before.WireGuardKey.String()
			r, err := mallory.Post(ctx, victimAddr, "/v1/peering", m)
			if err == nil && r.Status > 299 {
				err = fmt.Errorf("%v", r)
			}
			return err
		})
		if err := honest.Start(ctx); err != nil {
			t.Fatal(err)
		}
		await.NoError(t, ctx, 2*time.Minute, "the honest peer has its key, and a tunnel", func() error {
			b, a := with(victim, "b"), with(honest, "a")
			if b.State != peer.Connected || a.State != peer.Connected || b.WireGuardKey != before.WireGuardKey {
				return fmt.Errorf("b is %s with %s (%s), a is %s", b.State, b.WireGuardKey, b.Reason, a.State)
			}
			return nil
		})
		if v := with(victim, mallory.ID); v.WireGuardKey == before.WireGuardKey || v.NextWireGuardKey == before.WireGuardKey {
			t.Errorf("the attacker has it as %s: %s and %s", field, v.WireGuardKey, v.NextWireGuardKey)
		}
		m := mallory.Message()
		m[field] = before.WireGuardKey.String()
		if r, err := mallory.Post(ctx, victimAddr, "/v1/peering", m); err != nil || r.Code != "same-key" {
			t.Errorf("again as %s: %v, %v", field, r, err)
		}
	}
	lent(t, ctx)
}

// lent waits until each device lends to the other again.
func lent(t *testing.T, ctx context.Context) {
	t.Helper()
	for d, name := range map[*lab.Device]string{victim: "b", honest: "a"} {
		await.NoError(t, ctx, 2*time.Minute, "virtual node "+name, func() error {
			for _, n := range labtest.Status(t, ctx, d).VirtualNodes {
				if n.Name == name && n.Ready {
					return nil
				}
			}
			return fmt.Errorf("not ready")
		})
	}
}
