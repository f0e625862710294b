package hostile

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/await"
	"rivulet/test/harness/labtest"
	"rivulet/test/suites/hostile/attacker"
)

// A neighbour claims a key with which there is no secret, that of the honest peer in every
// spelling, and the victim's own, before it is a peer and as one. It is refused, the honest
// peer's tunnel goes on, a newcomer gets one, and so it is after the victim's tunnel
// process and its supervisor have started anew.
func TestAKeyThatIsNotItsOwnGetsNothing(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	with := func(d string) (v peer.View) {
		t.Helper()
		for _, p := range labtest.Status(t, ctx, victim).Peers {
			if p.Name == d || string(p.ID) == d {
				v = p
			}
		}
		return v
	}
	before := with("b")
	if before.State != peer.Connected {
		t.Fatalf("the honest peer is %s: %s", before.State, before.Reason)
	}
	theirs := before.WireGuardKey.String()
	raw := before.WireGuardKey.Bytes()
	raw[31] |= 0x80
	own := ""
	for _, p := range labtest.Status(t, ctx, honest).Peers {
		if p.Name == "a" {
			own = p.WireGuardKey.String()
		}
	}
	if own == "" {
		t.Fatal("the honest peer has no key of the victim")
	}
	mallory := attacker.New(t, suite.Lab, "mallory", "10.77.0.80")
	attack := func() {
		t.Helper()
		for name, key := range map[string]string{
			"the honest peer's":                     theirs,
			"the honest peer's over two lines":      theirs[:10] + "\n" + theirs[10:],
			"the honest peer's with a bit too many": base64.StdEncoding.EncodeToString(raw[:]),
			"the victim's":                          own,
			"of low order":                          "4Ot6fDtBuK4WVuP68Z/EatoJjeucMrH9hmIFFl9JuAA=",
			"one":                                   "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
		} {
			for _, field := range []string{"wireguardKey", "nextWireGuardKey"} {
				m := mallory.Message()
				m[field] = key
				r, err := mallory.Post(ctx, victimAddr, "/v1/peering", m)
				if err != nil {
					t.Errorf("%s as %s: %v", name, field, err)
				} else if r.Status != http.StatusForbidden || r.Code != "same-key" && r.Code != "bad-message" {
					t.Errorf("%s as %s: %v", name, field, r)
				}
			}
		}
	}
	well := func(when string) {
		t.Helper()
		await.NoError(t, ctx, time.Minute, "the honest peer and the newcomer are connected "+when, func() error {
			for _, name := range []string{"b", "newcomer"} {
				if p := with(name); p.State != peer.Connected || name == "b" && p.WireGuardKey.String() != theirs {
					return fmt.Errorf("%s: %s %s", name, p.State, p.Reason)
				}
			}
			return nil
		})
	}
	attack()
	p := mallory.Peer(ctx, victimAddr, attacker.Options{})
	rid(t, ctx, mallory)
	attack()
	if v := with(p.ID); v.WireGuardKey.String() != p.WireGuardKey {
		t.Errorf("mallory has the key %q", v.WireGuardKey)
	}
	consumer(t, ctx, "newcomer", "10.77.0.81")
	well("beside an attacker")
	if now := with("b"); now.Since != before.Since {
		t.Errorf("the honest peer was %s at %s", now.State, now.Since)
	}
	for _, what := range []string{"tunnel", "supervisor"} {
		if err := victim.Kill(ctx, what); err != nil {
			t.Fatal(err)
		}
		if what == "supervisor" {
			if err := victim.Start(ctx); err != nil {
				t.Fatal(err)
			}
		}
		await.NoError(t, ctx, time.Minute, "a status after the "+what+" has ended", func() error {
			out, err := victim.Run(ctx, "rivulet", "status", "-o", "json")
			if err == nil && !strings.Contains(out, "{") {
				err = fmt.Errorf("%s", out)
			}
			return err
		})
		well("after the " + what + " has ended")
		attack()
	}
}
