package nodes

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
)

// A worker is reached where it is, and cannot name another machine's address.
func TestAWorkersAddress(t *testing.T) {
	now := time.Now()
	lans := netmon.LANs{{Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}}
	report := func(age time.Duration, addrs ...string) lanReport {
		r := lanReport{at: now.Add(-age), Ports: []loadbalancer.Port{{Protocol: "TCP", Number: 22}}}
		for _, a := range addrs {
			r.Addresses = append(r.Addresses, netip.MustParseAddr(a))
		}
		return r
	}
	for what, c := range map[string]struct {
		path   string
		state  peer.State
		report lanReport
		want   bool
	}{
		"on the LAN":                    {"direct 192.0.2.7:7442", peer.Connected, report(0, "192.0.2.7", "10.9.9.9"), true},
		"as an IPv6 socket shows it":    {"direct [::ffff:192.0.2.7]:7442", peer.Connected, report(0, "192.0.2.7"), true},
		"another machine's address":     {"direct 192.0.2.7:7442", peer.Connected, report(0, "192.0.2.1"), false},
		"behind a router":               {"direct 192.0.2.254:40000", peer.Connected, report(0, "10.0.0.7"), false},
		"on another LAN":                {"direct 198.51.100.7:7442", peer.Connected, report(0, "198.51.100.7"), false},
		"by a relay":                    {"relay via c", peer.Connected, report(0, "192.0.2.7"), false},
		"lost":                          {"direct 192.0.2.7:7442", peer.Lost, report(0, "192.0.2.7"), false},
		"not heard of for some minutes": {"direct 192.0.2.7:7442", peer.Connected, report(lanLife+time.Second, "192.0.2.7"), false},
		"without a report":              {"direct 192.0.2.7:7442", peer.Connected, lanReport{}, false},
	} {
		n, ok := c.report.balanced(peer.View{Path: c.path, State: c.state}, lans, now)
		if ok != c.want || ok && (n.Addr.String() != "192.0.2.7" || !n.Taken[loadbalancer.Port{Protocol: "TCP", Number: 22}]) {
			t.Errorf("%s: %+v %v", what, n, ok)
		}
	}
}

// What a server sends before a release comes back as it was; what is out of bounds is refused.
func TestUpgradeQuery(t *testing.T) {
	q := UpgradeQuery{Signature: []byte("{\"a\": 1}\n"), Size: 7, Window: time.Minute, Every: time.Second}
	at, query, _ := strings.Cut(q.Path("pi-3"), "?")
	values, err := url.ParseQuery(query)
	if err != nil || at != "/v1/nodes/pi-3/upgrade" {
		t.Fatal(at, err)
	}
	if got, err := parseUpgrade(values); err != nil || string(got.Signature) != string(q.Signature) || got.Size != 7 || got.Window != q.Window || got.Every != q.Every {
		t.Errorf("%+v %v", got, err)
	}
	for key, bad := range map[string]string{"sig": "%", "size": "-1", "window": "1ms", "every": "0s"} {
		was := values.Get(key)
		values.Set(key, bad)
		if _, err := parseUpgrade(values); err == nil {
			t.Errorf("%s=%s is taken", key, bad)
		}
		values.Set(key, was)
	}
}
