// Package podview checks the network from a pod's position: whether requests to the API server and to cluster DNS by
// their Services are answered.
//
//	network namespace ─ eth0 10.42.255.253 ─▶ cni0 ─▶ kube-proxy's rules ─▶ INPUT ─▶ API server, cluster DNS
//
// A host firewall that drops packets of pods, or flushed rules of kube-proxy, cannot be detected reliably from the text
// of rules, and only pods are affected.
//
// It reads the bridge. It alone writes an interface on it, in its own network namespace, and a route to that
// interface's address; both end with the process. Before the first pod there is no bridge, and no check. It stores
// nothing.
package podview

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/machine/host"
	"rivulet/offload/nodeagent/podnet"
)

// Finding is the result of a check.
type Finding int

const (
	// Unknown: the node itself gets no answer either, or there is no bridge yet.
	Unknown Finding = iota
	// Fine: both answer.
	Fine
	// Unled: the node answers, but not by its Services.
	Unled
	// Dropped: the node answers itself, but not its pods.
	Dropped
)

// Node has the servers to check.
type Node struct {
	// API and DNS are the servers of the node, APIService and DNSService their Services.
	API, DNS, APIService, DNSService netip.AddrPort
}

// View is a check from one interface. Its methods may be called concurrently; one Check runs at a time.
type View struct {
	bridge, name string
	addr         netip.Addr

	mu      sync.Mutex
	ns      netns.NsHandle // 0: none
	gateway netip.Addr
}

// New returns a View without an interface yet. name is the end of the interface's name on the host, addr an address in
// the pod CIDR that no pod gets.
func New(bridge, name string, addr netip.Addr) *View {
	return &View{bridge: bridge, name: podnet.NoPod + name, addr: addr}
}

// patience is the time limit of one answer. A first packet may be lost while the neighbour's address is resolved.
const patience = 1500 * time.Millisecond

// Check sends requests, and repeats them before it returns a problem.
func (v *View) Check(ctx context.Context, n Node) (Finding, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if there, err := v.attach(); err != nil || !there {
		return Unknown, err
	}
	f := v.check(ctx, n)
	if f == Unled || f == Dropped {
		f = v.check(ctx, n)
	}
	if ctx.Err() != nil {
		f = Unknown
	}
	return f, nil
}

func (v *View) check(ctx context.Context, n Node) Finding {
	api, names := both(func() bool { return connects(ctx, v.dial, n.APIService) }, func() bool { return answers(ctx, v.dial, n.DNSService) })
	if api && names {
		return Fine
	}
	here := (&net.Dialer{}).DialContext
	// A server that answers the node, but not pods by its Service, is cut off from pods.
	ownAPI, ownNames := both(func() bool { return api || connects(ctx, here, n.API) }, func() bool { return names || answers(ctx, here, n.DNS) })
	lostAPI, lostNames := ownAPI && !api, ownNames && !names
	if !lostAPI && !lostNames {
		return Unknown
	}
	reachesAPI, reachesNames := both(func() bool { return !lostAPI || connects(ctx, v.dial, n.API) }, func() bool { return !lostNames || answers(ctx, v.dial, n.DNS) })
	if reachesAPI && reachesNames {
		return Unled
	}
	return Dropped
}

func both(a, b func() bool) (isA, isB bool) {
	var wait sync.WaitGroup
	wait.Go(func() { isA = a() })
	isB = b()
	wait.Wait()
	return isA, isB
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func connects(ctx context.Context, dial dialer, to netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := dial(ctx, "tcp", to.String())
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// answers asks for a name of the cluster, which no other server has to know while the Internet is out: any answer shows
// that a server is there.
func answers(ctx context.Context, dial dialer, server netip.AddrPort) bool {
	for range 2 { // UDP may be lost once
		ctx, cancel := context.WithTimeout(ctx, patience/2)
		defer cancel()
		c, err := dial(ctx, "udp", server.String())
		if err != nil {
			return false
		}
		defer c.Close()
		limit, _ := ctx.Deadline()
		_ = c.SetDeadline(limit)
		m := new(dns.Msg).SetQuestion("kubernetes.default.svc."+fixed.ClusterDomain+".", dns.TypeA)
		conn := &dns.Conn{Conn: c}
		if conn.WriteMsg(m) != nil {
			continue
		}
		if _, err := conn.ReadMsg(); err == nil {
			return true
		}
	}
	return false
}

// dial is called with mu held.
func (v *View) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	at := v.ns
	if e := host.OnThread(func() error {
		if err := netns.Set(at); err != nil {
			return err
		}
		c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return nil
	}); e != nil {
		return nil, e
	}
	return c, err
}

// attach creates the interface, unless it exists; there is false without a bridge. It is called with mu held.
func (v *View) attach() (there bool, err error) {
	bridge, err := netlink.LinkByName(v.bridge)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("podview: %w", err)
	}
	addrs, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
	if err != nil || len(addrs) == 0 {
		return false, err
	}
	gateway, _ := netip.AddrFromSlice(addrs[0].IP.To4())
	link, err := netlink.LinkByName(v.name)
	if err != nil || link.Attrs().MasterIndex != bridge.Attrs().Index || v.ns == 0 || v.gateway != gateway {
		if err == nil {
			_ = netlink.LinkDel(link)
		}
		if err := v.make(bridge, gateway); err != nil {
			v.close()
			return false, fmt.Errorf("podview: an interface as pods have it: %w; run as root", err)
		}
		v.gateway = gateway
	}
	way := &netlink.Route{LinkIndex: bridge.Attrs().Index, Dst: single(v.addr), Scope: netlink.SCOPE_LINK}
	if all, err := netlink.RouteListFiltered(netlink.FAMILY_V4, way, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF); err == nil && len(all) > 0 {
		return true, nil
	}
	if err := netlink.RouteReplace(way); err != nil {
		return false, fmt.Errorf("podview: a route to %s: %w", v.addr, err)
	}
	return true, nil
}

func (v *View) make(bridge netlink.Link, gateway netip.Addr) error {
	v.close()
	err := host.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		v.ns, err = netns.Get()
		return err
	})
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = v.name, bridge.Attrs().MTU, bridge.Attrs().Index
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(v.ns)}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(v.name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(v.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	eth, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	return errors.Join(inside.AddrAdd(eth, &netlink.Addr{IPNet: single(v.addr)}), inside.LinkSetUp(eth),
		inside.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
}

// Close removes the interface.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if link, err := netlink.LinkByName(v.name); err == nil && v.ns != 0 {
		_ = netlink.LinkDel(link)
	}
	v.close()
}

func (v *View) close() {
	if v.ns != 0 {
		_ = v.ns.Close()
		v.ns = 0
	}
}

func single(a netip.Addr) *net.IPNet { return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)} }
