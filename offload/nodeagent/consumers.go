package nodeagent

import (
	"net/netip"
	"reflect"
	"sync/atomic"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/elsewhere"
)

// Consumers returns what a node has to know about the clusters whose pods may run on it.
type Consumers interface {
	// Links are the links to all consumers.
	Links() []peer.Link
	// Of is what is known of one; the zero value for others.
	Of(id peer.ID) Known
	// Changed reports changes of Links and Of, like that of peer.Following.
	Changed() (<-chan struct{}, func())
}

// Known is what is known of a consumer.
type Known struct {
	// Confirmed are the addresses of its pods at other peers, in this cluster's view, sorted; at most those that count.
	Confirmed []netip.Addr
	// Others are the addresses of its pods on other nodes of this cluster, sorted.
	Others []netip.Addr
	// Under is how it sees the pods of other peers.
	Under elsewhere.Under
	// API is the address of its API server on this cluster's server, for its pods; not valid if it is elsewhere.
	API netip.AddrPort
}

// View is what a worker receives of its server: Links, and Of of the consumers that have twins there.
type View struct {
	Links []peer.Link
	Of    map[peer.ID]Known
}

// Show is the View of c. Of a link it has what the rules of a node depend on.
func Show(c Consumers, ids map[peer.ID]bool) View {
	v := View{Of: map[peer.ID]Known{}}
	for _, l := range c.Links() {
		v.Links = append(v.Links, peer.Link{ID: l.ID, Name: l.Name, Addr: l.Addr, PeerCIDR: l.PeerCIDR, PeerMappedCIDR: l.PeerMappedCIDR, LocalMappedCIDR: l.LocalMappedCIDR})
	}
	for id := range ids {
		v.Of[id] = c.Of(id)
	}
	return v
}

// Received are the Consumers of a worker: those of the last View. Its zero value is ready, and knows none.
type Received struct {
	view    atomic.Pointer[View]
	changed changes.Signal
}

// Set replaces the View.
func (r *Received) Set(v View) {
	if old := r.view.Swap(&v); old == nil || !reflect.DeepEqual(*old, v) {
		r.changed.Notify()
	}
}

// Links implements Consumers.
func (r *Received) Links() []peer.Link {
	if v := r.view.Load(); v != nil {
		return v.Links
	}
	return nil
}

// Of implements Consumers.
func (r *Received) Of(id peer.ID) Known {
	if v := r.view.Load(); v != nil {
		return v.Of[id]
	}
	return Known{}
}

// Changed implements Consumers.
func (r *Received) Changed() (<-chan struct{}, func()) { return r.changed.Changed() }
