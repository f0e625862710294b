package isolation

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
)

// Bounds of a consumer: how many addresses on other peers its pods here reach by its Services, and how many addresses
// of its EndpointSlices are read for them.
const (
	maxEndpoints = 1000
	maxNamed     = 20 * maxEndpoints
)

// world is the input of the tables.
type world struct {
	Tenants []tenant
	// Consumers are those with tenants, sorted.
	Consumers []consumer
	// Ingress are the pods of ingress controllers of this cluster, which may connect to tenants.
	Ingress []netip.Addr
	// Closed are networks of the host.
	Closed []netip.Prefix
	DNS    netip.Addr
	Server netip.Addr
	Pods   netip.Prefix // of this cluster
}

// tenant is a pod that runs here for another cluster: a tenant.
type tenant struct {
	Addr      netip.Addr
	Veth, MAC string
	Consumer  peer.ID
}

type consumer struct {
	ID   peer.ID
	Home netip.Prefix // invalid without a link
	// Seen is how the home sees this cluster's pods; invalid if that prefix has other pods here.
	Seen      netip.Prefix
	Tenants   []netip.Addr
	Others    []netip.Addr // on other nodes of this cluster
	Endpoints []netip.Addr
	Services  []netip.Addr   // cluster IPs here
	LAN       []Port         // node ports that lead to its tenants
	API       netip.AddrPort // on this host; invalid if its API server is elsewhere
}

// gather collects the world. It does not depend on the order of maps. less are the consumers above their bound.
func (cfg Config) gather() (w world, less map[peer.ID]error, err error) {
	pods, err := podnet.Read(cfg.Results, cfg.Held.exists)
	if err != nil {
		return world{}, nil, fmt.Errorf("isolation: %w", err)
	}
	twins := cfg.Twins()
	less = map[peer.ID]error{}
	w = world{DNS: cfg.DNS, Server: cfg.Server, Pods: cfg.Pods, Tenants: cfg.Held.tenants(pods, twins)}
	if len(w.Tenants) == 0 {
		return world{}, less, nil // without tenants other changes do not matter
	}
	home, seen := map[peer.ID]netip.Prefix{}, map[peer.ID]netip.Prefix{}
	links := cfg.Links()
	for _, l := range links {
		home[l.ID] = l.PeerMappedCIDR.Masked()
		other := func(o peer.Link) bool { return o.PeerMappedCIDR.Overlaps(l.LocalMappedCIDR) }
		if l.LocalMappedCIDR.IsValid() && l.LocalMappedCIDR.Bits() == cfg.Pods.Bits() && !l.LocalMappedCIDR.Overlaps(cfg.Pods) && !slices.ContainsFunc(links, other) {
			seen[l.ID] = l.LocalMappedCIDR.Masked()
		}
	}
	if cfg.Ingress != nil {
		ingress := cfg.Ingress()
		for _, p := range pods {
			tenant := slices.ContainsFunc(w.Tenants, func(g tenant) bool { return g.Addr == p.Addr })
			if !tenant && slices.Contains(ingress, p.Namespace) {
				w.Ingress = append(w.Ingress, p.Addr)
			}
		}
	}
	if cfg.Controllers != nil {
		for _, a := range cfg.Controllers() {
			here := slices.ContainsFunc(pods, func(p podnet.Pod) bool { return p.Addr == a })
			if !here && !slices.ContainsFunc(w.Tenants, func(g tenant) bool { return g.Addr == a }) {
				w.Ingress = append(w.Ingress, a)
			}
		}
	}
	byID := map[peer.ID]*consumer{}
	for _, g := range w.Tenants {
		c := byID[g.Consumer]
		if c == nil {
			c = &consumer{ID: g.Consumer, Home: home[g.Consumer], Seen: seen[g.Consumer]}
			var whole bool
			if c.Endpoints, whole = elsewhere(cfg.Endpoints(c.ID), c.ID, home); !whole {
				less[c.ID] = fmt.Errorf("it has more than %d pods on other clusters (or %d in all), and its pods here do not reach the rest; "+
					"let it have fewer there, or end the peering: rivulet unpeer", maxEndpoints, maxNamed)
			}
			if cfg.Others != nil {
				c.Others = cfg.Others(c.ID)
			}
			if cfg.API != nil {
				c.API = cfg.API(c.ID)
			}
			if cfg.Services != nil {
				c.Services = slices.Compact(slices.SortedFunc(cfg.Services(c.ID), netip.Addr.Compare))
			}
			if cfg.LAN != nil {
				c.LAN = cfg.LAN(c.ID)
			}
			byID[g.Consumer] = c
		}
		if g.Addr.IsValid() {
			c.Tenants = append(c.Tenants, g.Addr)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		w.Consumers = append(w.Consumers, *byID[id])
	}
	w.Closed = slices.DeleteFunc(cfg.Networks(), func(p netip.Prefix) bool { return !p.Addr().Is4() }) // tenants have IPv4 only
	slices.SortFunc(w.Closed, netip.Prefix.Compare)
	w.Closed = slices.Compact(w.Closed)
	return w, less, nil
}

// elsewhere are the accepted endpoints: those on other peers. An address of this cluster or of the host is not
// accepted, since a consumer could name any. whole is false if there are more than the bounds.
func elsewhere(named iter.Seq[netip.Addr], consumer peer.ID, home map[peer.ID]netip.Prefix) (out []netip.Addr, whole bool) {
	found := map[netip.Addr]bool{}
	n := 0
	for a := range named {
		if n++; n > maxNamed {
			return slices.SortedFunc(maps.Keys(found), netip.Addr.Compare), false
		}
		for id, p := range home {
			if id == consumer || !p.Contains(a) || found[a] {
				continue
			}
			if len(found) == maxEndpoints {
				return slices.SortedFunc(maps.Keys(found), netip.Addr.Compare), false
			}
			found[a] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), netip.Addr.Compare), true
}
