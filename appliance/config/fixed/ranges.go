package fixed

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
)

// Ranges are the networks of a cluster, each a /16. They never change in its lifetime.
type Ranges struct {
	Pods     netip.Prefix `json:"pods"`
	Services netip.Prefix `json:"services"`
	Nodes    netip.Prefix `json:"nodes"` // permanent addresses of nodes
}

// The networks and addresses of this cluster; Use sets them.
var (
	PodCIDR, ServiceCIDR, NodeRange netip.Prefix
	ClusterDNS                      netip.Addr
	TunnelAddress                   netip.Addr     // in the last /24 of pods, which no node gets before 255 others
	ControlAPI                      netip.AddrPort // control port for peers, inside the tunnel
	Networks                        []netip.Prefix // of the cluster itself
)

func init() { Use(Free(nil)) }

// Use sets the cluster's networks of this process. It is called before any use of them.
func Use(r Ranges) {
	PodCIDR, ServiceCIDR, NodeRange = r.Pods, r.Services, r.Nodes
	Networks = []netip.Prefix{r.Pods, r.Services, r.Nodes}
	ClusterDNS, TunnelAddress = within(r.Services, 10), within(r.Pods, 0xfffe)
	ControlAPI = netip.AddrPortFrom(TunnelAddress, ControlPort)
}

func within(p netip.Prefix, host uint16) netip.Addr {
	a := p.Addr().As4()
	binary.BigEndian.PutUint16(a[2:], host)
	return netip.AddrFrom4(a)
}

// File has a cluster's networks, beside its datastore, so that it is backed up, restored and removed together with
// that. The engine writes it at every start.
func File(state string) string { return paths.Server(state, "networks.json") }

// Before are the networks of a cluster without the file: it is older than the file.
var Before = Ranges{wide(10, 42), wide(10, 43), wide(100, 127)}

// Of reads the networks of the cluster in a state folder; there is false if there is no cluster yet.
func Of(state string) (r Ranges, there bool, err error) {
	raw, err := os.ReadFile(File(state))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = os.Stat(paths.Server(state, "db")); err == nil {
			return Before, true, nil
		}
		return Free(nil), false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	for _, p := range []netip.Prefix{r.Pods, r.Services, r.Nodes} {
		if err == nil && (!p.IsValid() || !p.Addr().Is4() || p.Bits() != 16 || p != p.Masked()) {
			err = errors.New("a network of 16 bits is missing in it")
		}
	}
	if err != nil {
		return Ranges{}, false, fmt.Errorf("the networks of this cluster: %s: %w; restore a backup, or begin anew: rivulet reset", File(state), err)
	}
	return r, true, nil
}

// Write stores the networks of the cluster in a state folder.
func Write(state string, r Ranges) error {
	raw, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(File(state)), 0o755)
	}
	if err == nil {
		err = durable.Write(File(state), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("the networks of this cluster cannot be stored: %w; look at the disk", err)
	}
	return nil
}

// Shared is the range of carriers' NAT and of Tailscale (RFC 6598). A route to one address of it is a sign that more are
// in use: Tailscale has routes of 32 bits only, and drops what has another source in the whole range.
var Shared = netip.MustParsePrefix("100.64.0.0/10")

// Free returns the networks for a new cluster: the usual ones, or others that overlap with nothing that is taken. If
// there are none, the usual ones. Nodes have addresses of the range for benchmarks (RFC 2544), which nobody routes; its
// first half is common for the made-up addresses of proxies.
func Free(taken []netip.Prefix) Ranges {
	var pods, services, nodes []netip.Prefix
	for step := range 20 {
		pods, services = append(pods, wide(10, 42+10*step)), append(services, wide(10, 43+10*step))
	}
	for step := range 6 { // in case all of 10.0.0.0/8 is in use
		pods, services = append(pods, wide(172, 20+2*step)), append(services, wide(172, 21+2*step))
	}
	for second := 19; second >= 18; second-- {
		nodes = append(nodes, wide(198, second))
	}
	var carriers []netip.Prefix
	for second := 127; second >= 112; second-- {
		carriers = append(carriers, wide(100, second))
	}
	if !slices.ContainsFunc(taken, Shared.Overlaps) {
		nodes = append(nodes, carriers...)
	}
	free := func(all []netip.Prefix) (netip.Prefix, bool) {
		for _, p := range all {
			if !slices.ContainsFunc(taken, p.Overlaps) {
				return p, true
			}
		}
		return all[0], false
	}
	var r Ranges
	r.Pods, _ = free(pods)
	r.Services, _ = free(services)
	var ok bool
	if r.Nodes, ok = free(nodes); !ok { // one that others may drop is better than one that others have
		if p, ok := free(carriers); ok {
			r.Nodes = p
		}
	}
	return r
}

func wide(first, second int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(first), byte(second)}), 16)
}
