package appliance

import (
	"testing"
	"time"

	"rivulet/fabric/discovery"
)

// What peers names is looked for at once, and no longer when it is gone from the file;
// a change says so.
func TestPeersOfTheConfiguration(t *testing.T) {
	s, rewrite := configured(t, "peers: [192.0.2.7]")
	s.settle()
	events := make(chan discovery.Event, 8)
	go s.sources.Static.Watch(t.Context(), func(e discovery.Event) { events <- e })
	expect := func(kind discovery.Kind, addr string) {
		t.Helper()
		select {
		case e := <-events:
			if e.Kind != kind || e.Entry.Addrs[0].String() != addr {
				t.Fatalf("told %v, want %s %s", e, kind, addr)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("not told: %s %s", kind, addr)
		}
	}
	expect(discovery.Added, "192.0.2.7:7442")
	rewrite("peers: [\"[2001:db8::1]:7000\"]")
	if r := s.reload(); len(r.Changed) != 1 || r.Changed[0] != "peers" {
		t.Errorf("changed: %v", r.Changed)
	}
	expect(discovery.Removed, "192.0.2.7:7442")
	expect(discovery.Added, "[2001:db8::1]:7000")
	rewrite("")
	s.reload()
	expect(discovery.Removed, "[2001:db8::1]:7000")
}
