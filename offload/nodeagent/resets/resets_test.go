package resets

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/nft"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/test/harness/testns"
)

// A pod has a connection to a pod on a peer by its address, one by a Service's, one from such a pod, and one to
// elsewhere; all are silent. The peer's prefix is given up and its packets go nowhere: the first three
// end at once with an error, the last stays.
func TestWhoWaitsForAPrefixThatIsGoneGetsAnError(t *testing.T) {
	host, pod, peer := testns.New(t), testns.New(t), testns.New(t)
	host.Router()
	host.Bridge("cni0", "10.42.0.1/24")
	host.Plug("cni0", "vethpod", pod, "10.42.0.10/24", "10.42.0.1")
	host.Cable("out", peer, "in")
	host.Do(func() error {
		return errors.Join(testns.Give("out", "192.0.2.1/24"), testns.Route("240.3.0.0/16", "192.0.2.2"), testns.Route("203.0.113.0/24", "192.0.2.2"))
	})
	peer.Do(func() error {
		return errors.Join(testns.Give("in", "192.0.2.2/24"), testns.Give("lo", "240.3.0.9/32"), testns.Give("lo", "203.0.113.1/32"), testns.Route("10.42.0.0/16", "192.0.2.1"))
	})
	// As kube-proxy does: a Service's address leads to the pod on the peer.
	c, err := nft.Open(int(host.NS))
	if err != nil {
		t.Fatal(err)
	}
	table := c.AddTable(&nftables.Table{Name: "services", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "pre", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	to := netip.MustParseAddr("240.3.0.9").As4()
	nft.Rule(c, chain, nft.Within(nft.Destination, netip.MustParsePrefix("10.43.5.5/32")), []expr.Any{
		&expr.Immediate{Register: 1, Data: to[:]}, &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1}})
	if err := c.Flush(); err != nil {
		t.Skipf("needs nf_tables: %v", err)
	}
	quiet := func(r testns.Room, at string) chan net.Conn {
		accepted := make(chan net.Conn, 9)
		r.Do(func() error {
			l, err := net.Listen("tcp", at) // of IPv6, as most servers', where at has no address
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted <- c
				}
			}()
			return nil
		})
		return accepted
	}
	dial := func(r testns.Room, addr string) (c net.Conn) {
		r.Do(func() (err error) { c, err = net.DialTimeout("tcp", addr, 5*time.Second); return err })
		t.Cleanup(func() { c.Close() })
		return c
	}
	at := quiet(peer, ":80")
	served := quiet(pod, ":81")
	conns := map[string]net.Conn{"by address": dial(pod, "240.3.0.9:80"), "by a Service": dial(pod, "10.43.5.5:80"), "elsewhere": dial(pod, "203.0.113.1:80")}
	var far net.Conn
	peer.Do(func() (err error) {
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("240.3.0.9")}}
		far, err = d.Dial("tcp", "10.42.0.10:81")
		return err
	})
	defer far.Close()
	conns["from the peer"] = <-served
	for range 3 {
		defer (<-at).Close()
	}
	host.Do(func() error { // it leads nowhere from now on
		return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4(240, 3, 0, 0), Mask: net.CIDRMask(16, 32)}, Gw: net.ParseIP("192.0.2.2")})
	})
	open := func(veth string) (*os.File, error) {
		if veth != "vethpod" {
			return nil, podnet.ErrGone
		}
		return os.Open(filepath.Join("/proc/self/fd", strconv.Itoa(int(pod.NS))))
	}
	host.Do(func() error {
		n, err := prefixes([]podnet.Pod{{Addr: netip.MustParseAddr("10.42.0.10"), Veth: "vethpod"}, {Addr: netip.MustParseAddr("10.42.0.11"), Veth: "gone"}},
			[]netip.Prefix{netip.MustParsePrefix("240.3.0.0/16")}, open)
		if err == nil && n != 3 {
			t.Errorf("%d connections were ended, want 3", n)
		}
		return err
	})
	for name, c := range conns {
		limit := 5 * time.Second
		if name == "elsewhere" {
			limit = 100 * time.Millisecond
		}
		_ = c.SetReadDeadline(time.Now().Add(limit))
		_, err := c.Read(make([]byte, 1))
		switch timeout := errors.Is(err, os.ErrDeadlineExceeded); {
		case name == "elsewhere" && !timeout:
			t.Errorf("%s: %v, it should still stand", name, err)
		case name != "elsewhere" && !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ECONNRESET):
			t.Errorf("%s: %v, want an error at once", name, err)
		}
	}
}
