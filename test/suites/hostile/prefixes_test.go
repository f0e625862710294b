package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/suites/hostile/attacker"
)

// Somebody announces networks of the site as its pods, again and again under new
// identities. None of them goes into the tunnel, there is an end to how many become
// peers, the honest neighbour goes on, and one command forgets them all.
func TestAnnouncedPrefixesAreNotRouted(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a := attacker.New(t, suite.Lab, "mallory", "10.77.0.60")
	announce := func(cidr, tunnel string) attacker.Reply {
		m := a.Message()
		m["podCIDR"], m["tunnelAddress"] = cidr, tunnel
		r, err := a.Post(ctx, victimAddr, "/v1/peering", m)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ours := netip.MustParsePrefix("240.0.0.0/5")
	if r := announce("10.200.0.0/24", "10.200.0.53"); r.Status != http.StatusForbidden || !strings.Contains(r.String(), `"prefix"`) {
		t.Errorf("a prefix of another size: %s", r)
	}
	peers, full := 0, 0
	for i := range 20 {
		a.NewIdentity()
		r := announce(fmt.Sprintf("10.%d.0.0/16", 200+i), fmt.Sprintf("10.%d.0.53", 200+i))
		switch {
		case r.Status == http.StatusOK:
			peers++
			var said struct{ SeeYouAs netip.Prefix }
			if err := json.Unmarshal(r.Body, &said); err != nil || !ours.Contains(said.SeeYouAs.Addr()) || said.SeeYouAs.Bits() != 16 {
				t.Errorf("identity %d is seen as %s, %v", i, said.SeeYouAs, err)
			}
		case r.Status == http.StatusForbidden && strings.Contains(r.String(), `"full"`):
			full++
		default:
			t.Fatalf("identity %d: %s", i, r)
		}
	}
	if peers == 0 || full == 0 || peers > 16 {
		t.Errorf("%d identities of one machine became peers, %d were refused", peers, full)
	}
	routes, err := victim.Run(ctx, "ip", "route", "show", "table", "all")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(routes, "\n") {
		for n := 200; n < 220; n++ {
			if strings.HasPrefix(line, fmt.Sprintf("10.%d.", n)) {
				t.Errorf("a network of the site is routed: %s", line)
			}
		}
	}
	connected := func() error {
		out, err := victim.Run(ctx, "rivulet", "peers", "-o", "json")
		if err == nil && !strings.Contains(out, `"Connected"`) {
			err = fmt.Errorf("nobody is connected: %s", out)
		}
		return err
	}
	if err := connected(); err != nil {
		t.Errorf("the honest neighbour: %v", err)
	}
	if out, err := victim.Run(ctx, "rivulet", "unpeer", "--lan", "--yes"); err != nil || !strings.Contains(out, "peers are none any more") {
		t.Errorf("unpeer --lan: %v: %s", err, out)
	}
	await.NoError(t, ctx, time.Minute, "the honest neighbour, and nobody else, is a peer", func() error {
		out, err := victim.Kubectl(ctx, "get", "peers", "--no-headers")
		if n := len(strings.Fields(strings.ReplaceAll(strings.TrimSpace(out), " ", "_"))); err == nil && n != 1 {
			err = fmt.Errorf("%d: %s", n, out)
		}
		if err == nil {
			err = connected()
		}
		return err
	})
}
