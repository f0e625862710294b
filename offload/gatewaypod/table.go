package gatewaypod

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"time"
)

// table assigns home's addresses to pods at the campus: one each, from the gateway's prefix, the same as long as the
// pod exists. The last part is that of the real address if it is free. It is pure.
type table struct {
	prefix netip.Prefix // IPv4
	own    netip.Addr
	byReal map[netip.Addr]entry
	bySeen map[netip.Addr]netip.Addr
}

type entry struct {
	seen netip.Addr
	used time.Time // when the pod was last seen
}

func newTable(prefix netip.Prefix, own netip.Addr, pods map[netip.Addr]netip.Addr, now time.Time) *table {
	t := &table{prefix: prefix.Masked(), own: own, byReal: map[netip.Addr]entry{}, bySeen: map[netip.Addr]netip.Addr{}}
	for seen, real := range pods {
		if _, twice := t.byReal[real]; t.usable(seen) && !twice {
			t.byReal[real], t.bySeen[seen] = entry{seen, now}, real
		}
	}
	return t
}

// ownAddress is the gateway's: the last but one of the prefix, as a cluster's own is.
func ownAddress(prefix netip.Prefix) netip.Addr {
	return offset(prefix.Masked(), 1<<(32-prefix.Bits())-2)
}

func offset(p netip.Prefix, n uint32) netip.Addr {
	a := p.Addr().As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3]) + n
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func (t *table) usable(seen netip.Addr) bool {
	size := uint32(1) << (32 - t.prefix.Bits())
	return t.prefix.Contains(seen) && seen != t.own && seen != t.prefix.Addr() && seen != offset(t.prefix, size-1)
}

// see returns home's address for the pod, and whether it is new. It is not valid if all are taken.
func (t *table) see(real netip.Addr, now time.Time) (netip.Addr, bool) {
	real = real.Unmap()
	if e, ok := t.byReal[real]; ok {
		t.byReal[real] = entry{e.seen, now}
		return e.seen, false
	}
	size := uint32(1) << (32 - t.prefix.Bits())
	for i, at := uint32(0), preferred(real)%size; i < size; i, at = i+1, (at+1)%size {
		seen := offset(t.prefix, at)
		if _, taken := t.bySeen[seen]; !taken && t.usable(seen) {
			t.byReal[real], t.bySeen[seen] = entry{seen, now}, real
			return seen, true
		}
	}
	return netip.Addr{}, false
}

func preferred(a netip.Addr) uint32 {
	if a.Is4() {
		b := a.As4()
		return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
	h := fnv.New32a()
	h.Write(a.AsSlice())
	return h.Sum32()
}

// keep removes pods that have been gone for a while: another pod may then get the address. It reports whether there
// were any.
func (t *table) keep(there map[netip.Addr]bool, now time.Time, while time.Duration) (forgot bool) {
	for real, e := range t.byReal {
		switch {
		case there[real]:
			t.byReal[real] = entry{e.seen, now}
		case now.Sub(e.used) >= while:
			delete(t.byReal, real)
			delete(t.bySeen, e.seen)
			forgot = true
		}
	}
	return forgot
}

func (t *table) pods() map[netip.Addr]netip.Addr { return maps.Clone(t.bySeen) }
