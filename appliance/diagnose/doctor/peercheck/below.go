package peercheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/appliance/diagnose/doctor"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
)

// Checks below the tunnel. While the tunnel works none of them fails: a peer that moves keeps its tunnel and may be
// unreachable in all other ways.

// below fails, or warns if the tunnel works.
func (e *examination) below(cure, format string, args ...any) doctor.Result {
	if e.works {
		return doctor.Warnf(cure, "%s; the tunnel carries all the same", fmt.Sprintf(format, args...))
	}
	return doctor.Failf(cure, format, args...)
}

func (e *examination) discovery(context.Context) doctor.Result {
	switch {
	case len(e.Peer.Found) > 0:
		return doctor.Passf("found by %s at %s", strings.Join(e.Peer.Found, ", "), list(e.Addrs))
	case len(e.Addrs) > 0:
		return doctor.Warnf("see that it is switched on, and that the network lets multicast through (rivulet doctor --only multicast); or name it in peers of the configuration",
			"nobody announces it now; it was last at %s", list(e.Addrs))
	}
	return e.below("switch it on, on the same LAN, or name its address in peers of the configuration", "nobody announces it, and no address of it is known")
}

func (e *examination) tcp(ctx context.Context) doctor.Result {
	if len(e.Addrs) == 0 {
		return doctor.Skipf("no address of it is known")
	}
	var why []string
	for _, a := range e.Addrs {
		begun := time.Now()
		each, cancel := context.WithTimeout(ctx, 3*time.Second)
		c, err := e.Dial(each, a)
		cancel()
		if err == nil {
			e.conn, e.at = c, a
			return doctor.Passf("%s takes connections, after %s", a, time.Since(begun).Round(10*time.Microsecond))
		}
		why = append(why, fmt.Sprintf("%s: %s", a, reason(err)))
	}
	return e.below(fmt.Sprintf("see that it is switched on and rivulet runs there (rivulet status), and let TCP %d in at its firewall", e.Addrs[0].Port()),
		"no connection (%s)", strings.Join(why, "; "))
}

func (e *examination) identity(ctx context.Context) doctor.Result {
	if e.conn == nil {
		return doctor.Skipf("there is no connection outside of the tunnel to ask over")
	}
	got, err := e.Identify(ctx, e.conn)
	switch {
	case err != nil:
		return e.below("see what listens there: it is not rivulet, or one that is too busy to answer", "%s does not prove who it is (%s)", e.at, reason(err))
	case e.Peer.ID == "":
		return doctor.Passf("cluster %s is at %s", got.Short(), e.at)
	case got != e.Peer.ID:
		return e.below("look for two devices with one address; if the device was set up anew, it is another cluster now: rivulet unpeer --force the old one",
			"%s is another cluster, %s, and not %s", e.at, got.Short(), e.Peer.ID.Short())
	}
	return doctor.Passf("%s proves that it is %s", e.at, got.Short())
}

func (e *examination) peering(context.Context) doctor.Result {
	p := e.Peer
	if !p.Complete() {
		text, cure := split(p.Reason)
		if text == "" {
			text, cure = "the exchange is not done yet", "wait a few seconds and ask again"
		}
		return doctor.Failf(cure, "%s: %s", strings.ToLower(string(p.State)), text)
	}
	if p.State == peer.Refused {
		text, cure := split(p.Reason)
		return doctor.Failf(cure, "it was a peer and is refused now: %s", text)
	}
	if far := apart(e.KubeVersion, p.KubeVersion); far > 1 {
		return doctor.Warnf("upgrade the older one", "Kubernetes is %s here and %s there, %d minor versions apart", e.KubeVersion, p.KubeVersion, far)
	}
	return doctor.Passf("trusted since %s (%s); rivulet %s here, %s there", p.Trust.At.Local().Format("2006-01-02 15:04"), p.Trust.How, e.Version, cmp.Or(p.Version, "an unknown version"))
}

// tunnelPeer is the data plane's state of the peer.
func (e *examination) tunnelPeer() (tunnel.PeerStatus, bool) {
	if e.Tunnel != nil {
		for _, p := range e.Tunnel.Peers {
			if p.ID == string(e.Peer.ID) {
				return p, true
			}
		}
	}
	return tunnel.PeerStatus{}, false
}

func (e *examination) way(context.Context) doctor.Result {
	if e.Tunnel == nil {
		return doctor.Failf("see why: rivulet status, and log/tunnel.log in the state folder", "the tunnel's process on this device does not answer")
	}
	p, ok := e.tunnelPeer()
	if !ok {
		return doctor.Failf("see rivulet status for what keeps the tunnel from being set up", "the tunnel does not know this peer yet")
	}
	if p.Problem != nil {
		return e.below(p.Problem.Cure, "the tunnel does not serve it as it should: %s", p.Problem.Text)
	}
	if p.LastHandshake.IsZero() && p.Received == 0 && !e.works {
		return doctor.Failf(fmt.Sprintf("let UDP %d through in the firewalls of both devices and of the network between them", e.Peer.Tunnel.Port()),
			"%d bytes went to %s and nothing ever came back", p.Sent, p.Endpoint)
	}
	if len(p.Paths) > 0 && !e.works && !slices.ContainsFunc(p.Paths, func(w paths.PathStatus) bool { return w.Alive }) {
		return doctor.Failf(fmt.Sprintf("let UDP %d through in both directions, in the firewalls of both devices and of the network between them", e.Peer.Tunnel.Port()),
			"none of %d ways to it answers now (the first is %s)", len(p.Paths), p.Paths[0].Addr)
	}
	return describeWay(p)
}

// rekey is the greatest age of the keys of a tunnel in use: WireGuard replaces them after 120 s of use, and drops them
// after 180 s.
const rekey = 180 * time.Second

func (e *examination) handshake(context.Context) doctor.Result {
	p, _ := e.tunnelPeer()
	age := e.Now().Sub(p.LastHandshake).Round(time.Second)
	switch {
	case p.LastHandshake.IsZero():
		return e.below(fmt.Sprintf("let UDP %d through in both directions; some firewalls let it out only", e.Peer.Tunnel.Port()), "it has never shaken hands")
	case age > rekey:
		return e.below(fmt.Sprintf("see that it is switched on, and that UDP %d passes in both directions: it did until then", e.Peer.Tunnel.Port()), "the last handshake was %s ago", age)
	}
	return doctor.Passf("the last handshake was %s ago", age)
}

// reason is the shortest text for why a connection failed.
func reason(err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case errors.As(err, &op) && op.Timeout():
		return "no answer"
	case errors.As(err, &op) && op.Err != nil:
		return op.Err.Error()
	}
	return err.Error()
}

// split separates a text from its cure, with either separator.
func split(s string) (text, cure string) {
	for _, sep := range []string{"; ", ": "} {
		if i := strings.LastIndex(s, sep); i > 0 {
			return s[:i], s[i+len(sep):]
		}
	}
	return s, "see: rivulet peers"
}

func list(addrs []netip.AddrPort) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// apart is the difference of the minor versions of Kubernetes; 0 if that is unknown.
func apart(a, b string) int {
	var majorA, minorA, majorB, minorB int
	if n, _ := fmt.Sscanf(a, "v%d.%d", &majorA, &minorA); n != 2 {
		return 0
	}
	if n, _ := fmt.Sscanf(b, "v%d.%d", &majorB, &minorB); n != 2 || majorA != majorB {
		return 0
	}
	return max(minorA-minorB, minorB-minorA)
}
