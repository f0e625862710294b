package cli

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rivulet/offload/gatewaypod"
)

// As it comes over the socket: a map of what the gateway says.
func TestGatewayRows(t *testing.T) {
	for _, c := range []struct {
		status gatewaypod.Status
		want   []string
		not    string
	}{
		{gatewaypod.Status{Ready: true, Pod: "g-1", Transport: "udp 192.0.2.1:7442", RTT: 2345678 * time.Nanosecond, Receiving: 1_500_000, Sending: 12, Prefix: netip.MustParsePrefix("10.208.0.0/16"), Services: 3},
			[]string{"gateway=g-1", "path=udp 192.0.2.1:7442, round trip 2.35ms, 1.5 MB/s in, 12 B/s out", "pods there=10.208.0.0/16 at home; 3 Services of home there"}, "not reached"},
		{gatewaypod.Status{Reason: "the gateway does not run", Problems: []string{"one", "two"}}, []string{"not reached=the gateway does not run", "problem=one", "problem=two"}, "path"},
	} {
		raw, err := json.Marshal(c.status)
		if err != nil {
			t.Fatal(err)
		}
		var sent any
		if err := json.Unmarshal(raw, &sent); err != nil {
			t.Fatal(err)
		}
		var rows []string
		if err := gatewayRows(sent, func(key, value string) { rows = append(rows, key+"="+value) }); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(rows, "\n")
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
		if strings.Contains(text, c.not+"=") {
			t.Errorf("%q is in\n%s", c.not, text)
		}
	}
}
