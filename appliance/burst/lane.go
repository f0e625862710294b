package burst

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// lane is the network for a target: that of the present gateway. Without one nothing is known.
type lane struct {
	manager *Manager
	name    string
}

func (l lane) gateway() Gateway {
	l.manager.mu.Lock()
	defer l.manager.mu.Unlock()
	if e := l.manager.entries[l.name]; e != nil && e.way != nil {
		return e.way.gateway
	}
	return nil
}

// Home translates an address of a pod there.
func (l lane) Home(a netip.Addr) (netip.Addr, bool) {
	if g := l.gateway(); g != nil {
		return g.Home(a)
	}
	return netip.Addr{}, false
}

// Away translates an address of home.
func (l lane) Away(a netip.Addr) (netip.Addr, bool) {
	if g := l.gateway(); g != nil {
		return g.Away(a)
	}
	return netip.Addr{}, false
}

// DNS is the DNS configuration of the namespace's pods.
func (l lane) DNS(namespace string) (*corev1.PodDNSConfig, bool) {
	if g := l.gateway(); g != nil {
		return g.DNS(namespace)
	}
	return nil, false
}
