package peering

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// The read-only view of a Machine.

func (m *Machine) ID() peer.ID             { return m.id }
func (m *Machine) Pinned() bool            { return m.pinned }
func (m *Machine) Record() peer.Record     { return m.rec }
func (m *Machine) State() peer.State       { return m.state }
func (m *Machine) Reason() string          { return m.reason }
func (m *Machine) Began() time.Time        { return m.began }
func (m *Machine) Since() time.Time        { return m.since }
func (m *Machine) RTT() time.Duration      { return m.rtt }
func (m *Machine) Proved() bool            { return m.proved }
func (m *Machine) Displaced() bool         { return m.displaced }
func (m *Machine) KeyTaken() wgkey.Public  { return m.keyTaken }
func (m *Machine) LastExchange() time.Time { return m.exchanged }
func (m *Machine) Attempts() int           { return m.attempts }
func (m *Machine) Attempting() bool        { return m.attempting }
func (m *Machine) Refusal() (error, bool)  { return m.refusal, m.mine } //nolint:revive // the error is the value

// View is the cluster as status shows it.
func (m *Machine) View() peer.View {
	v := peer.View{Record: m.rec, State: m.state, Reason: m.reason, RTT: m.rtt, Since: m.since, LastSeen: m.lastSeen}
	if v.Reason == "" {
		v.Reason = m.notice
	}
	v.Found, v.Addrs = sources(m.found), m.Addrs().All()
	if !m.pinned {
		v.Record = peer.Record{ID: m.id, Name: m.Title(), Control: m.requestedAt}
		if len(v.Addrs) > 0 {
			v.Control = v.Addrs[0]
		}
	}
	v.Control, v.Tunnel = Specified(v.Control), Specified(v.Tunnel)
	return v
}

// Link is the link to a peer, false if it has none.
func (m *Machine) Link() (peer.Link, bool) {
	addr, ok := m.rec.Address()
	if !m.pinned || !ok {
		return peer.Link{}, false
	}
	l := untunnelled(m)
	l.Addr, l.PeerCIDR, l.PeerMappedCIDR, l.LocalMappedCIDR = addr, m.rec.PeerCIDR, m.rec.PeerMappedCIDR, m.rec.LocalMappedCIDR
	return l, true
}

// Unlinked is a peer without a link, false if it has one or is no peer.
func Unlinked(m *Machine) (peer.Unlinked, bool) {
	if _, linked := m.rec.Address(); !m.pinned || linked {
		return peer.Unlinked{}, false
	}
	return peer.Unlinked{Link: untunnelled(m), Why: cmp.Or(m.keyless(), "the two clusters have not told each other all that a tunnel needs; they exchange it again by themselves")}, true
}

// untunnelled is what of a peer's link does not depend on a tunnel.
func untunnelled(m *Machine) peer.Link {
	r := m.rec
	return peer.Link{ID: m.id, Name: r.Name, State: m.state, RTT: m.rtt, Nearness: m.nearness.class, Price: r.Price, Labels: r.Labels,
		Trust: r.Trust.How, NoBorrow: r.NoBorrow(), NoLend: r.NoLend()}
}

// Title is its best known name.
func (m *Machine) Title() string {
	if m.pinned {
		return m.rec.Name
	}
	for _, e := range m.found {
		if e.Name != "" {
			return e.Name
		}
	}
	if addrs := m.Addrs().All(); m.name == "" && m.id == "" && len(addrs) > 0 {
		return addrs[0].String()
	}
	return m.name
}

// Handle is its name on the command line.
func (m *Machine) Handle() string {
	if t := m.Title(); t != "" {
		return t
	}
	return m.id.Short()
}

// Addrs are the control addresses of a cluster.
type Addrs struct {
	// Known are those at which it has proved itself, the last one that worked first, and those that the owner has given or
	// configured.
	Known []netip.AddrPort
	// Announced are others that somebody has announced as the cluster's.
	Announced []netip.AddrPort
}

// All are those to try: the first announced one, to which the cluster may have moved, known ones, then the others.
func (a Addrs) All() []netip.AddrPort {
	first := min(len(a.Announced), 1)
	return slices.Concat(a.Announced[:first], a.Known, a.Announced[first:])
}

func (m *Machine) Addrs() (out Addrs) {
	known, announced := []netip.AddrPort{m.rec.Control}, []netip.AddrPort(nil)
	for _, key := range slices.Sorted(maps.Keys(m.found)) {
		if e := m.found[key]; e.ID == "" {
			known = append(known, e.Addrs...)
		} else {
			announced = append(announced, e.Addrs...)
		}
	}
	for _, a := range append(append(known, m.requestedAt), m.given...) {
		if Specified(a).IsValid() && !slices.Contains(out.Known, a) {
			out.Known = append(out.Known, a)
		}
	}
	for _, a := range append(announced, m.earlier...) {
		if !slices.Contains(out.Announced, a) && !slices.Contains(out.Known, a) {
			out.Announced = append(out.Announced, a)
		}
	}
	return out
}

// Entries are the discovery entries, by source and key.
func (m *Machine) Entries() map[string]discovery.Entry { return m.found }

// Place is the announced address of a stranger.
func (m *Machine) Place() netip.Addr {
	for _, e := range m.found {
		if len(e.Addrs) > 0 {
			return e.Addrs[0].Addr()
		}
	}
	return m.requestedAt.Addr()
}

// Split moves an entry to a Machine of its own.
func (m *Machine) Split(key string, to *Machine) {
	to.found[key] = m.found[key]
	delete(m.found, key)
}

// passage is what may block packets.
func (m *Machine) passage() string {
	if at := Specified(m.rec.Tunnel); at.IsValid() {
		return fmt.Sprintf("does UDP %d pass between %s and this device?", at.Port(), at.Addr())
	}
	return "is a peer of both there that carries (tunnel.relay)?"
}

// keyless is why a peer without a key has no tunnel, empty for one with a key.
func (m *Machine) keyless() string {
	if !m.pinned || !m.rec.WireGuardKey.IsZero() {
		return ""
	}
	return "the WireGuard key that is stored of it cannot be used, or is another peer's; it gets a tunnel as soon as it tells another; on " + m.Handle() + ": rivulet rotate-key"
}

// Specified returns the address, or the zero value if it is unspecified: of a cluster met through another only the
// port is known.
func Specified(a netip.AddrPort) netip.AddrPort {
	if a.Addr().IsUnspecified() {
		return netip.AddrPort{}
	}
	return a
}

// RefusedState is the state after a refusal, by this cluster (here) or by the other.
func RefusedState(err error, here bool) peer.State {
	switch code := pairing.Code(err); {
	case code == "pending":
		return peer.Waiting
	case here && (code == "denied" || code == "unpeered"):
		return peer.Denied
	}
	return peer.Refused
}

// answered reports whether the error came from the owner of the requested ID: the request used a connection that had
// proved it.
func answered(err error) bool {
	var e *rpc.Error
	return errors.As(err, &e) && e.Code != "not-on-link" && e.Code != "closed"
}

// Explain describes a failed exchange in one line with a cure.
func Explain(err error, addrs []netip.AddrPort) string {
	var known *rpc.Error
	var wrong *rpc.WrongPeerError
	switch {
	case errors.As(err, &known):
		return known.Error()
	case errors.As(err, &wrong):
		return fmt.Sprintf("another cluster (%s) answers at its address: wait until it is discovered anew, or look for two devices with one address", wrong.Got.Short())
	case len(addrs) == 0:
		return "no address is known: switch it on, on the same LAN"
	}
	why := "no answer"
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil && !op.Timeout() {
		why = op.Err.Error()
	}
	return fmt.Sprintf("it cannot be reached at %s (%s): is rivulet running there, and does its firewall let TCP %d in?", addrs[0], why, addrs[0].Port())
}
