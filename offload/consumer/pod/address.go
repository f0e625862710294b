package pod

import (
	"net/netip"
	"slices"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
)

// Addresses returns the addresses of home's pods on the target, as home sees them, and the number of unfinished pods
// that home has sent there. It reports false until all are loaded.
func (x *index) Addresses() (addrs []netip.Addr, pods int, known bool) {
	known = x.pods.synced()
	namespaces := map[string]bool{}
	for _, p := range x.pods.list() {
		if !translate.Terminal(p.Status.Phase) {
			pods++
			namespaces[p.Namespace] = true
		}
	}
	for ns := range namespaces {
		t := x.twins.Get(ns)
		known = known && t != nil && t.Listed()
	}
	for _, t := range x.twins.List() {
		for _, text := range t.Addresses() {
			if there, err := netip.ParseAddr(text); err == nil {
				if here, ok := x.cfg.Target.Home(there); ok {
					addrs = append(addrs, here)
				}
			}
		}
	}
	return addrs, pods, known
}

// Runs reports whether a pod of home now runs on the target at the address, given as home sees it.
func (x *index) Runs(addr netip.Addr) bool {
	there, ok := x.cfg.Target.Away(addr)
	if !ok {
		return false
	}
	if back, ok := x.cfg.Target.Home(there); !ok || back != addr {
		return false // an address of home or of another target
	}
	return slices.ContainsFunc(x.twins.List(), func(t *twin.Twin) bool { return t.Has(there) })
}
