package loadbalancer

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
)

// Service is a Service that is reachable from the LAN.
type Service struct {
	Name string   `json:"name"` // namespace/name
	At   []string `json:"at"`   // HOST:PORT, by address and by name; /udp for another protocol than TCP
}

// open is a Service that has its addresses.
type open struct {
	service string // namespace/name
	addrs   []netip.Addr
	ports   []Port
}

// Opened has the Services with addresses; its zero value is empty.
type Opened struct{ services atomic.Pointer[[]open] }

// Reached returns the Services that have their addresses, the oldest first. By name they have the host of page, the
// device's status page. It may be called at any time.
func (o *Opened) Reached(page string) (out []Service) {
	services := o.services.Load()
	if services == nil {
		return nil
	}
	name := ""
	if u, err := url.Parse(page); err == nil && strings.HasSuffix(u.Hostname(), ".local") {
		name = u.Hostname()
	}
	for _, s := range *services {
		made := Service{Name: s.service}
		for _, p := range s.ports {
			add := func(host string) {
				at := net.JoinHostPort(host, strconv.Itoa(int(p.Number)))
				if p.Protocol != corev1.ProtocolTCP {
					at += "/" + strings.ToLower(string(p.Protocol))
				}
				made.At = append(made.At, at)
			}
			for _, a := range s.addrs {
				add(a.String())
			}
			if name != "" {
				add(name)
			}
		}
		out = append(out, made)
	}
	return out
}
