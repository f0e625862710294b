package pod

import (
	"net/netip"
	"slices"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
)

// Addresses returns the addresses of home's pods on the target, as home sees them, and the number of unfinished pods
// that home has sent there. It reports false until all are loaded.
func (c *Controller) Addresses() (addrs []netip.Addr, pods int, known bool) {
	known = c.pods.synced()
	namespaces := map[string]bool{}
	for _, p := range c.pods.list() {
		if !translate.Terminal(p.Status.Phase) {
			pods++
			namespaces[p.Namespace] = true
		}
	}
	for ns := range namespaces {
		t := c.twins.Get(ns)
		known = known && t != nil && t.Listed()
	}
	for _, t := range c.twins.List() {
		for _, text := range t.Addresses() {
			if there, err := netip.ParseAddr(text); err == nil {
				if here, ok := c.cfg.Target.Home(there); ok {
					addrs = append(addrs, here)
				}
			}
		}
	}
	return addrs, pods, known
}

// Runs reports whether a pod of home now runs on the target at the address, given as home sees it.
func (c *Controller) Runs(addr netip.Addr) bool {
	there, ok := c.cfg.Target.Away(addr)
	if !ok {
		return false
	}
	if back, ok := c.cfg.Target.Home(there); !ok || back != addr {
		return false // an address of home or of another target
	}
	return slices.ContainsFunc(c.twins.List(), func(t *twin.Twin) bool { return t.Has(there) })
}
