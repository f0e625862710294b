// Package discovery finds clusters nearby. Its entries are hints and never trusted: anybody on a LAN can announce
// anything, so the consumer of an entry verifies by TLS who is there.
//
// A Source is one way to find clusters; discoverytest has the contract tests. Sources keep nothing across restarts.
package discovery

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
)

type Announcement struct {
	ID   peer.ID
	Name string
	Port uint16 // control port, TCP
	// TXT is additional, small and public.
	TXT map[string]string
}

// MaxAddrs bounds the addresses of an entry that are used: anybody may announce any number in the name of any cluster.
const MaxAddrs = 8

type Entry struct {
	// Key distinguishes entries of one source. It stays the same when the entry changes.
	Key string
	// ID is what the entry claims; empty if the source has none.
	ID   peer.ID
	Name string
	// Addrs are control addresses, the most promising first.
	Addrs []netip.AddrPort
	// Interface is the LAN interface on which the entry was received, empty if it has none.
	Interface string
	TXT       map[string]string
}

// Equal reports whether the two need no event.
func (e Entry) Equal(o Entry) bool {
	return e.Key == o.Key && e.ID == o.ID && e.Name == o.Name && e.Interface == o.Interface &&
		slices.Equal(e.Addrs, o.Addrs) && maps.Equal(e.TXT, o.TXT)
}

type Kind string

// The kinds of events. Changed means that an address, a port or a text is new.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
)

// Event is one change of an entry. That of a removed entry has its last known state.
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

// Source finds clusters in one way. Both methods block until ctx ends and survive a network that is not there yet,
// fails or returns. The contract:
//
//   - for each Key: Added, then any number of Changed, then at most one Removed, then perhaps Added again;
//   - a changed address, port or text is reported within 30 s;
//   - a clean goodbye is reported within a few seconds, a silent death eventually;
//   - a device's own announcements are not reported to it.
type Source interface {
	// Name is for logs and status.
	Name() string
	// Announce announces a until ctx ends, and revokes it before it returns. It is called once at a time.
	Announce(ctx context.Context, a Announcement) error
	// Watch calls report for every event, one after the other, until ctx ends.
	Watch(ctx context.Context, report func(Event)) error
}

// Retainer is a Source that accepts announcements from anybody. When there are more clusters than it can store, those
// known to be real stay.
type Retainer interface {
	// Keep sets the function that reports whether a cluster is real. It has to return quickly.
	Keep(known func(peer.ID) bool)
}
