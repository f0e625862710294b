package host

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
)

// Further are addresses on lo beside the node's: each virtual node has one of the same range, derived from its name. It
// is usable once Nodes and Own are set.
type Further struct {
	Nodes netip.Prefix // a /16
	Own   netip.Addr

	mu  sync.Mutex
	all map[string]netip.Addr
}

// Take allocates an address for the name, which is on lo until release is called.
func (f *Further) Take(name string) (addr netip.Addr, release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]netip.Addr{}
	}
	addr, err = f.free(name)
	if err != nil {
		return addr, nil, err
	}
	f.all[name] = addr
	if _, err := f.ensure(); err != nil {
		delete(f.all, name)
		return addr, nil, err
	}
	return addr, func() { f.giveBack(name) }, nil
}

// Has reports whether a name has the address.
func (f *Further) Has(a netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, taken := range f.all {
		if taken == a {
			return true
		}
	}
	return false
}

// free is called with mu held.
func (f *Further) free(name string) (netip.Addr, error) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name)) // it cannot fail
	at, base := uint16(sum.Sum32()), f.Nodes.Addr().As4()
	for range 1 << 16 {
		at++
		addr := netip.AddrFrom4([4]byte{base[0], base[1], byte(at >> 8), byte(at)})
		taken := addr == f.Own || byte(at) == 0 || byte(at) == 255 // as in identity.NodeAddress
		for other, a := range f.all {
			taken = taken || other != name && a == addr
		}
		if !taken {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("host: no address of %s is left", f.Nodes)
}

// ensure adds missing addresses to lo. It is called with mu held.
func (f *Further) ensure() (missing []string, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return ensureAddresses(lo, maps.Values(f.all))
}

// putBack adds addresses to lo that another program has removed.
func (f *Further) putBack() ([]string, error) {
	if f == nil {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ensure()
}

func (f *Further) giveBack(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	addr := f.all[name]
	delete(f.all, name)
	if lo, err := netlink.LinkByName("lo"); err == nil {
		_ = netlink.AddrDel(lo, single(addr)) // the next start, or cleanup, removes it
	}
}

func single(addr netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}}
}
