// Package discovery says which clusters are around. What it says is a hint and
// never trusted: anyone on a LAN can announce anything, so whoever acts on an
// entry makes sure by TLS who is there.
//
// A Source is one way to find clusters; discoverytest holds the contract that
// each of them passes. Sources keep nothing across restarts.
package discovery

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
)

// Announcement is what a cluster makes known of itself.
type Announcement struct {
	ID   peer.ID
	Name string
	Port uint16 // control port, TCP
	// TXT is additional, small and public.
	TXT map[string]string
}

// Entry is a cluster that was found.
type Entry struct {
	// Key tells entries of one source apart. It stays while the entry is changed.
	Key string
	// ID is what the entry claims; empty if the source does not know.
	ID   peer.ID
	Name string
	// Addrs are control addresses, the most promising first.
	Addrs []netip.AddrPort
	// Interface is the LAN interface on which the entry was heard, empty if that has no meaning.
	Interface string
	TXT       map[string]string
}

// Equal reports whether there is nothing to tell between the two.
func (e Entry) Equal(o Entry) bool {
	return e.Key == o.Key && e.ID == o.ID && e.Name == o.Name && e.Interface == o.Interface &&
		slices.Equal(e.Addrs, o.Addrs) && maps.Equal(e.TXT, o.TXT)
}

// Kind says what happened to an entry.
type Kind string

// The kinds of events. Changed means that an address, a port or a text is new.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
)

// Event is one thing that happened. Of a removed entry only what was last known is told.
type Event struct {
	Kind  Kind
	Entry Entry
}

// List holds the entries that a source reported last, by key.
type List map[string]Entry

// Report reports the differences between the list and now, which becomes the list.
func (l *List) Report(now map[string]Entry, report func(Event)) {
	for key, e := range *l {
		if _, ok := now[key]; !ok {
			report(Event{Kind: Removed, Entry: e})
		}
	}
	for key, e := range now {
		if old, ok := (*l)[key]; !ok {
			report(Event{Kind: Added, Entry: e})
		} else if !old.Equal(e) {
			report(Event{Kind: Changed, Entry: e})
		}
	}
	*l = now
}

// Source finds clusters in one way. Both methods block until ctx ends and survive
// a network that is not there yet, goes away or comes back. The contract:
//
//   - for each Key: Added, then any number of Changed, then at most one Removed, then perhaps Added again;
//   - a changed address, port or text is told within 30 s;
//   - a clean goodbye is told within a few seconds, a silent death by and by;
//   - what a device announces itself is not told to it.
type Source interface {
	// Name is for logs and status.
	Name() string
	// Announce makes the announcement known until ctx ends, and then takes it
	// back before it returns. It is called once at a time.
	Announce(ctx context.Context, a Announcement) error
	// Watch calls tell for every event, one after the other, until ctx ends.
	Watch(ctx context.Context, report func(Event)) error
}

// Retainer is a Source that anybody can tell anything: when it hears of more clusters
// than it can remember, those that are known to be real stay.
type Retainer interface {
	// Keep names a function that says who is real. It takes no long time.
	Keep(known func(peer.ID) bool)
}
