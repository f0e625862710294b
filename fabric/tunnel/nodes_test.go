package tunnel

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"rivulet/fabric/nft"
	"rivulet/fabric/reach"
	"rivulet/test/harness/await"
	"rivulet/test/harness/testns"
)

// The world of this test: a cluster of two nodes, and a peer that has a tunnel to the first one alone.
//
//	pod 10.42.0.5 ── [server 100.127.0.1] ──┬── [peer] ── pod 10.42.0.7
//	pod 10.42.1.5 ── [worker 100.127.0.2] ──┘
var (
	nodeRange = netip.MustParsePrefix("100.127.0.0/16")
	serverAt  = netip.MustParseAddr("100.127.0.1")
	workerAt  = netip.MustParseAddr("100.127.0.2")
	peerBlock = netip.MustParsePrefix("10.200.0.0/13")
)

type shelf struct{ server, worker, peer *board }

func newShelf(t *testing.T) *shelf {
	t.Helper()
	s := &shelf{server: newDevice(t, "10.42.0.5/24"), peer: newDevice(t, "10.42.0.7/24"), worker: newBoard(t, "10.42.1.1/24", "10.42.1.5/24")}
	cable(s.server.node, "eth0", "192.168.77.1/24", s.peer.node, "eth0", "192.168.77.2/24")
	cable(s.server.node, "eth1", "192.168.78.1/24", s.worker.node, "eth0", "192.168.78.2/24")
	for node, at := range map[*room]netip.Addr{s.server.node: serverAt, s.worker.node: workerAt} {
		node.must(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(at, 32))})
		})
	}
	keyS, pubS := newKeys(t)
	keyW, pubW := newKeys(t)
	keyP, pubP := newKeys(t)
	prefix := netip.MustParsePrefix
	behindWorker, behindServer := []netip.Prefix{prefix("10.42.1.0/24"), netip.PrefixFrom(workerAt, 32)}, []netip.Prefix{podCIDR, nodeRange, peerBlock}
	s.server.want = config(keyS,
		Peer{ID: "worker", PublicKey: pubW, LocalMappedCIDR: prefix("172.30.0.0/16"), PeerMappedCIDR: prefix("10.202.0.0/16"), Behind: behindWorker},
		Peer{ID: "peer", PublicKey: pubP, Endpoint: netip.MustParseAddrPort("192.168.77.2:7442"), LocalMappedCIDR: aSeenByB, PeerMappedCIDR: bSeenByA})
	s.worker.want = config(keyW, Peer{ID: "server", PublicKey: pubS, Endpoint: netip.MustParseAddrPort("192.168.78.1:7442"),
		LocalMappedCIDR: prefix("10.202.0.0/16"), PeerMappedCIDR: prefix("172.30.0.0/16"), Behind: behindServer})
	s.peer.want = config(keyP, Peer{ID: "a", PublicKey: pubS, Endpoint: netip.MustParseAddrPort("192.168.77.1:7442"), LocalMappedCIDR: bSeenByA, PeerMappedCIDR: aSeenByB})
	s.server.want.Node, s.server.want.Nodes, s.worker.want.Node, s.worker.want.Nodes = serverAt, nodeRange, workerAt, nodeRange
	// On the server everything is open to the peer; the worker leaves that to the server.
	all := reach.Rules{Interface: "riv0", Own: ownAddress, Whole: []netip.Prefix{prefix("0.0.0.0/0")}, Nodes: behindWorker}
	if _, err := nft.NewGuard(int(s.server.node.ns), slog.New(slog.DiscardHandler)).Tables(reach.Table, reach.Family).Apply([]nft.Program{reach.Program(all)}); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*board{s.server, s.worker, s.peer} {
		if err := b.Apply(t.Context(), b.want); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Nodes and their pods reach each other with their own addresses, and a peer's pods by way of the node with the tunnel.
func TestNodesOfOneCluster(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const size = 1 << 20
	for _, c := range []struct {
		what        string
		from, to    *room
		dst, seenAs string
	}{
		{"pod to pod", s.worker.pod, s.server.pod, "10.42.0.5", "10.42.1.5"},
		{"pod to pod, back", s.server.pod, s.worker.pod, "10.42.1.5", "10.42.0.5"},
		{"node to node", s.worker.node, s.server.node, "100.127.0.1", "100.127.0.2"},
		{"node to node, back", s.server.node, s.worker.node, "100.127.0.2", "100.127.0.1"},
		{"node to pod", s.server.node, s.worker.pod, "10.42.1.5", "100.127.0.1"},
		{"node to pod, back", s.worker.node, s.server.pod, "10.42.0.5", "100.127.0.2"},
		{"pod to node", s.worker.pod, s.server.node, "100.127.0.1", "10.42.1.5"},
		{"pod to the peer's pod", s.worker.pod, s.peer.pod, "10.200.0.7", "10.201.1.5"},
		{"the peer's pod to pod", s.peer.pod, s.worker.pod, "10.201.1.5", "10.200.0.7"},
		{"node to the peer's pod", s.worker.node, s.peer.pod, "10.200.0.7", "10.201.255.254"},
		{"the server's pod to the peer's", s.server.pod, s.peer.pod, "10.200.0.7", "10.201.0.5"},
	} {
		t.Run(c.what, func(t *testing.T) { stream(t, c.from, c.to, c.dst, c.seenAs, size) })
	}
	t.Run("another program flushes the worker's rules", func(t *testing.T) {
		c, err := nftables.New(nftables.WithNetNSFd(int(s.worker.node.ns)))
		if err != nil {
			t.Fatal(err)
		}
		c.DelTable(&nftables.Table{Name: reach.Table, Family: reach.Family})
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		await.True(t, reachLimit, "the table is back", func() bool {
			n, err := nft.Stand(int(s.worker.node.ns), reach.Table, reach.Family)
			return err == nil && n > 0
		})
		stream(t, s.server.pod, s.worker.pod, "10.42.1.5", "10.42.0.5", size)
	})
	t.Run("a client of the LAN at a NodePort", func(t *testing.T) {
		client := newRoom(t)
		cable(s.server.node, "eth2", "192.168.79.1/24", client, "eth0", "192.168.79.2/24")
		nodePort(t, s.server.node, 30081, netip.MustParseAddrPort("10.42.1.5:8080"))
		l := s.worker.pod.listen(":8080")
		seen := make(chan string, 1)
		go func() {
			if c, err := l.Accept(); err == nil {
				seen <- c.RemoteAddr().String()
				c.Close()
			}
		}()
		c, err := client.dial("tcp4", "192.168.79.1:30081", reachLimit)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(reachLimit))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("%v, want the end", err)
		}
		if host, _, _ := net.SplitHostPort(<-seen); host != serverAt.String() {
			t.Errorf("the pod sees %s, want the server's address", host)
		}
	})
}

// WireGuard lets a worker send from its own pods' and its node's addresses alone.
func TestANodeIsNobodyElse(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	answer(s.server.pod.listen(":80"))
	for _, foreign := range []string{"10.42.2.9", "100.127.0.9"} {
		s.worker.node.must(func() error { return testns.Give("lo", foreign+"/32") })
	}
	from := func(addr string) testns.Try {
		return testns.Try{Room: s.worker.node.Room, From: addr, To: "10.42.0.5:80"}
	}
	testns.NoneConnects(t, from("100.127.0.2"), from("10.42.2.9"), from("100.127.0.9"))
}

// A peer reaches no node of the cluster, by none of its addresses.
func TestAPeerReachesNoNode(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	for _, node := range []*room{s.server.node, s.worker.node} {
		answer(node.listen(":10250"))
	}
	answer(s.worker.pod.listen(":80"))
	if c, err := s.peer.pod.dial("tcp4", "10.201.1.5:80", reachLimit); err != nil {
		t.Fatal(err)
	} else {
		c.Close()
	}
	s.peer.node.must(func() error { // the peer's own administrator may add any route
		link, err := netlink.LinkByName("riv0")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(nodeRange), Scope: netlink.SCOPE_LINK})
	})
	s.peer.pod.ReachesNot("10.201.1.5:80", "10.201.1.1:10250", "10.201.0.1:10250", "10.201.255.254:10250", "100.127.0.1:10250", "100.127.0.2:10250")
	// Another node does reach the kubelet, at the node's address.
	if c, err := s.server.node.dial("tcp4", "100.127.0.2:10250", reachLimit); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}
