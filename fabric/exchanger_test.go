package fabric

import (
	"net/netip"
	"testing"

	"rivulet/fabric/discovery"
	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// A denial during an exchange is shown, however the exchange ends.
func TestADenialDuringAnExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.cluster(1, "a", alone), newStranger(t, 60)
	denied := make(chan error, 1)
	s.answers(t, func(n int32) {
		if n == 1 {
			_, err := a.Deny(t.Context(), string(s.id.ID))
			denied <- err
		}
	})
	go a.ApproveAt(t.Context(), s.id.ID, s.at()) //nolint:errcheck // it waits for a result
	var state peer.State
	a.await("the end of the exchange", func() bool {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		m := a.members.byID(s.id.ID)
		if m == nil || m.Attempts() == 0 {
			return false
		}
		state = m.State()
		return true
	})
	if err := <-denied; err != nil || state != peer.Denied {
		t.Errorf("denied: %v, shown as %s", err, state)
	}
}

// An address that is removed and added again during an exchange with it stays known.
func TestAnAddressReturnsDuringAnExchange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.cluster(1, "a", alone), newStranger(t, 60)
	if err := s.pair(a); err != nil {
		t.Fatal(err)
	}
	entry := discovery.Entry{Key: "k", Addrs: []netip.AddrPort{netip.AddrPortFrom(onLAN, 1)}}
	get := func() *member { a.members.mu.Lock(); defer a.members.mu.Unlock(); return a.members.all["list/k"] }
	a.exchanger.discovered("list", discovery.Event{Kind: discovery.Added, Entry: entry})
	old := get()
	a.exchanger.discovered("list", discovery.Event{Kind: discovery.Removed, Entry: entry})
	a.exchanger.discovered("list", discovery.Event{Kind: discovery.Added, Entry: entry})
	r, _ := a.record(s.id.ID)
	a.exchanger.exchanged("list/k", old, r, wgkey.Public{})
	if m := get(); m == nil || m == old {
		t.Error("the address is forgotten")
	}
}
