package fabric

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// maxRelays bounds the peers through which one exchange is tried.
const maxRelays = 4

// via is a way to relay an exchange.
type via struct {
	id   peer.ID // of the common peer or the broker
	dial pairing.Dial
}

// relaysTo are common peers and brokers that may reach the cluster, brokers last.
func (x *exchanger) relaysTo(id peer.ID) (out []via) {
	for _, p := range x.members.relaysTo(id) {
		out = append(out, via{p, func(ctx context.Context, _, _ string) (net.Conn, error) { return x.relay.Dial(ctx, p, id) }})
	}
	for _, b := range x.brokers.To(id) {
		out = append(out, via{b.ID, func(ctx context.Context, _, _ string) (net.Conn, error) { return x.brokers.Dial(ctx, b, id) }})
	}
	return out
}

// exchangeRelayed does the exchange through a common peer or a broker.
func (x *exchanger) exchangeRelayed(ctx context.Context, id peer.ID) (peer.Record, error) {
	err := noLink(id)
	for _, via := range x.relaysTo(id) {
		r, e := x.party.Exchange(ctx, pairing.PostTo(x.identity, id, netip.AddrPortFrom(x.clients.address, x.port), via.dial))
		if e == nil {
			x.log.Info("peering was carried", "peer", r.Name, "id", id.Short(), "via", via.id.Short())
			return r, nil
		}
		if err = worse(err, e); pairing.Refused(e) || ctx.Err() != nil {
			break
		}
	}
	return peer.Record{}, err
}

// reachable reports whether one of the addresses accepts a connection. It tries all at once, so that a cluster behind a
// NAT is detected within two seconds.
func reachable(ctx context.Context, addrs []netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	got := make(chan bool, len(addrs))
	for _, a := range addrs {
		go func() {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.String())
			if err == nil {
				c.Close()
			}
			got <- err == nil
		}()
	}
	for range addrs {
		if <-got {
			return true
		}
	}
	return false
}

// relaysTo are peers that may reach the cluster, the nearest first.
func (s *members) relaysTo(id peer.ID) (out []peer.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var near []*member
	for _, m := range s.peers() {
		if m.ID() != id && m.State() == peer.Connected {
			near = append(near, m)
		}
	}
	slices.SortFunc(near, func(a, b *member) int { return cmp.Or(cmp.Compare(a.RTT(), b.RTT()), cmp.Compare(a.ID(), b.ID())) })
	for _, m := range near[:min(len(near), maxRelays)] {
		out = append(out, m.ID())
	}
	return out
}
