package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/offload/policy"
)

// One line per cluster, as many columns as the head has, whatever is not known yet.
func TestWide(t *testing.T) {
	id := peer.ID(strings.Repeat("a", 32))
	now := time.Now()
	st := api.Status{
		Peers: []peer.View{
			{State: peer.Connected, Since: now.Add(-90 * time.Minute), RTT: 250 * time.Microsecond, Found: []string{"dns", "mdns"}, Record: peer.Record{
				ID: id, Name: "b", Trust: peer.Trust{How: "lan", At: now}, PeerMappedCIDR: netip.MustParsePrefix("10.64.0.0/16"), LocalMappedCIDR: netip.MustParsePrefix("10.72.0.0/16"),
				Control: netip.MustParseAddrPort("192.0.2.2:7442"), Version: "1.0.0", KubeVersion: "v1.35.0"}},
			{State: peer.Discovered, Since: now},
		},
		Tunnel: &tunnel.Status{Peers: []tunnel.PeerStatus{{ID: string(id), Endpoint: netip.MustParseAddrPort("192.0.2.2:7442"), LastHandshake: now.Add(-5 * time.Second),
			Received: 1_500_000, Sent: 12, Paths: []paths.PathStatus{{Kind: paths.Direct, Alive: true, Used: true}}}}},
	}
	st.Open = map[string][]string{string(id): {"lab/web"}, policy.OpenToAll: {"shop"}, policy.OpenToGroup: {"secret"}, strings.Repeat("b", 32): {"others"}}
	var out strings.Builder
	if err := printWide(&out, st.PeerList(), now); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for _, want := range []string{"b ", "Connected", " 90m ", "lan", "dns,mdns", "direct", "192.0.2.2:7442", "250µs", " 5s ", "1.5 MB", "12 B", "10.64.0.0/16", "10.72.0.0/16", " lab/web,shop ", "1.0.0", "v1.35.0"} {
		if !strings.Contains(lines[1], want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if !strings.HasPrefix(lines[2], "-") || !strings.Contains(lines[2], "Discovered") {
		t.Errorf("a cluster of which nothing is known: %q", lines[2])
	}
}
