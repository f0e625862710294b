package fabric

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// stranger speaks the peering protocol with a true identity and says what it likes. It
// has no fabric: nothing of it answers.
type stranger struct {
	id     rpc.Identity
	self   pairing.Self
	record peer.Record
	starts uint64 // after the first
	invite []byte
	join   bool
}

func newStranger(t *testing.T, n byte) *stranger {
	t.Helper()
	id, err := rpc.NewIdentity(newKey(n), "stranger")
	if err != nil {
		t.Fatal(err)
	}
	key, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return &stranger{id: id, self: pairing.Self{
		ID: id.ID, Name: "stranger", Version: "0.1", WireGuardKey: key.Public(),
		TunnelPort: 7442, ControlPort: 7442, TunnelAddress: inTunnel, PodCIDR: podCIDR,
	}}
}

func (s *stranger) Self() pairing.Self { return s.self }

func (s *stranger) Record(peer.ID) (peer.Record, bool) { return s.record, s.record.ID != "" }

func (s *stranger) Parted(peer.ID) (heard, skip uint64) { return 0, 0 }

func (s *stranger) Invite(peer.ID) ([]byte, bool) { return s.invite, s.join }

func (s *stranger) Admit(pairing.Stranger) (string, error) { return peer.TrustLAN, nil }

func (s *stranger) Join(_ pairing.Stranger, r peer.Record) error { return s.Save(r) }

func (s *stranger) Save(r peer.Record) error { s.record = r; return nil }

func (s *stranger) Choose(peer.ID, netip.Prefix) (netip.Prefix, error) {
	return netip.PrefixFrom(netip.MustParseAddr("10.99.0.0"), podCIDR.Bits()), nil
}

func (s *stranger) Claim(peer.Record) error { return nil }

// pair does the exchange with a cluster.
func (s *stranger) pair(c *cluster) error {
	p := &pairing.Party{Cluster: s, Epoch: 1 + s.starts, Now: time.Now}
	c.await("an open control port", func() bool {
		return pairing.Reach(context.Background(), s.id, c.id(), netip.AddrPortFrom(onLAN, c.cfg.Port), nil) == nil
	})
	_, err := p.Exchange(context.Background(), pairing.PostTo(s.id, c.id(), netip.AddrPortFrom(onLAN, c.cfg.Port), nil))
	return err
}

// leave says that it is a peer no more.
func (s *stranger) leave(c *cluster) error {
	return pairing.SendEnd(context.Background(), s.id, c.id(), netip.AddrPortFrom(onLAN, c.cfg.Port), nil,
		pairing.End{Versions: pairing.Versions, ID: s.id.ID, Sequence: 1 << 40})
}

// alone is a cluster that discovers nothing.
func alone(c *Config) { c.Sources = nil }

// answers opens the stranger's control port. Each connection calls do with its number, from 1 on, then proves the
// stranger's identity and ends.
func (s *stranger) answers(t *testing.T, do func(n int32)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s.self.ControlPort = uint16(l.Addr().(*net.TCPAddr).Port)
	var n atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				do(n.Add(1))
				tls.Server(c, rpc.ServerTLS(s.id)).Handshake() //nolint:errcheck // the other end may have gone
			}()
		}
	}()
}

func (s *stranger) at() string {
	return netip.AddrPortFrom(onLAN, s.self.ControlPort).String()
}
