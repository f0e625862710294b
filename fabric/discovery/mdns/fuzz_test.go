package mdns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"rivulet/fabric/discovery"
	"rivulet/fabric/netmon"
)

// Whatever a LAN sends, the events that come of it follow from each other.
func FuzzPackets(f *testing.F) {
	lan := netmon.Interface{Index: 2, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}
	for _, name := range []string{"a", ""} {
		b, err := announcement(discovery.Announcement{ID: testID(0), Name: name, Port: 7442, TXT: map[string]string{"k": "v"}}, lan).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		told := map[string]discovery.Entry{}
		c := &cache{timing: quick, entries: map[key]*cached{}, report: func(e discovery.Event) {
			if _, had := told[e.Entry.Key]; had == (e.Kind == discovery.Added) {
				t.Fatalf("%v does not follow from what was told before", e)
			}
			if e.Kind != discovery.Removed && (!e.Entry.ID.Valid() || len(e.Entry.Addrs) == 0) {
				t.Fatalf("%v cannot be used", e)
			}
			told[e.Entry.Key] = e.Entry
			if e.Kind == discovery.Removed {
				delete(told, e.Entry.Key)
			}
		}}
		now := time.Unix(1e9, 0)
		for _, b := range [][]byte{first, second, first} {
			var m dns.Msg
			if m.Unpack(b) != nil {
				continue
			}
			for _, s := range sightings(&m) {
				c.see(now, s, lan, netip.MustParseAddr("192.0.2.7"))
			}
			now = now.Add(time.Second)
			c.tick(now)
		}
		c.tick(now.Add(quick.Expire))
		if len(told) > 0 {
			t.Fatalf("never expired: %v", told)
		}
	})
}
