package network

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"rivulet/fabric/peer"
)

type fakePrefixes struct {
	mu      sync.Mutex
	links   []peer.Link
	changed chan struct{}
}

func (f *fakePrefixes) Links() []peer.Link {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.links)
}
func (f *fakePrefixes) Gateways() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.130.0.0/16")}
}
func (f *fakePrefixes) Changed() (<-chan struct{}, func()) { return f.changed, func() {} }

func (f *fakePrefixes) SetPeerCIDR(netip.Prefix) {}
func (f *fakePrefixes) CheckPrefixes()           {}

func (f *fakePrefixes) become(links ...peer.Link) {
	f.mu.Lock()
	f.links = links
	f.mu.Unlock()
	f.changed <- struct{}{}
}

type ranges chan []netip.Prefix

func (r ranges) SetPeers(p []netip.Prefix) { r <- p }

// Policies hear of the block and of what is still outside of it; connections end under a prefix that a peer has no
// more, that is of nobody any more, or by which the peer sees this cluster otherwise. A state of a link ends none.
func TestPrefixesThatAreGivenUp(t *testing.T) {
	link := func(id peer.ID, mapped, local string, state peer.State) peer.Link {
		return peer.Link{ID: id, PeerMappedCIDR: netip.MustParsePrefix(mapped), LocalMappedCIDR: netip.MustParsePrefix(local), State: state}
	}
	f, told, ended := &fakePrefixes{changed: make(chan struct{})}, make(ranges, 9), make(chan []netip.Prefix, 9)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		followPrefixes(ctx, f, func() netip.Prefix { return netip.MustParsePrefix("240.0.0.0/5") }, told, func(gone []netip.Prefix) { ended <- gone })
	})
	defer func() { stop(); done.Wait() }()
	for i, step := range []struct {
		links      []peer.Link
		told, gone []string
	}{
		{nil, []string{"240.0.0.0/5", "10.130.0.0/16"}, nil},
		{[]peer.Link{link("b", "10.128.0.0/16", "240.5.0.0/16", peer.Connected), link("c", "240.7.0.0/16", "240.5.0.0/16", peer.Connected)}, []string{"240.0.0.0/5", "10.128.0.0/16", "10.130.0.0/16"}, nil},
		{[]peer.Link{link("b", "10.128.0.0/16", "240.5.0.0/16", peer.Lost), link("c", "240.7.0.0/16", "240.5.0.0/16", peer.Connected)}, []string{"240.0.0.0/5", "10.128.0.0/16", "10.130.0.0/16"}, nil},
		{[]peer.Link{link("b", "240.3.0.0/16", "240.5.0.0/16", peer.Connected), link("c", "240.7.0.0/16", "240.5.0.0/16", peer.Connected)}, []string{"240.0.0.0/5", "10.130.0.0/16"}, []string{"10.128.0.0/16"}},
		{[]peer.Link{link("b", "240.3.0.0/16", "240.5.0.0/16", peer.Connected), link("c", "240.7.0.0/16", "240.6.0.0/16", peer.Connected)}, []string{"240.0.0.0/5", "10.130.0.0/16"}, []string{"240.7.0.0/16"}},
		{[]peer.Link{link("c", "240.7.0.0/16", "240.6.0.0/16", peer.Connected)}, []string{"240.0.0.0/5", "10.130.0.0/16"}, []string{"240.3.0.0/16"}},
	} {
		if i > 0 {
			f.become(step.links...)
		}
		same := func(what string, got []netip.Prefix, want []string) {
			t.Helper()
			if !slices.EqualFunc(got, want, func(p netip.Prefix, w string) bool { return p.String() == w }) {
				t.Errorf("step %d: %s %v, want %v", i, what, got, want)
			}
		}
		same("policies hear of", <-told, step.told)
		if step.gone != nil {
			same("connections end under", <-ended, step.gone)
		}
	}
	if len(ended) != 0 {
		t.Errorf("connections end under %v", <-ended)
	}
}
