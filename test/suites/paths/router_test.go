package paths

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// router is a home router: one port on the LAN, which is the Internet here, with a
// public address there and a network of its own behind it, and nothing let in that was not asked for.
type router struct {
	ns     netns.NsHandle
	n      byte // the network is 10.78.N.0/24, the public address 10.77.0.240+N
	device *lab.Device
}

// newRouter puts the device behind a router.
func newRouter(t *testing.T, d *lab.Device, n byte) *router {
	t.Helper()
	r := &router{n: n, device: d}
	made := make(chan error)
	go func() { // the thread stays locked and ends with the goroutine
		runtime.LockOSThread()
		var err error
		if r.ns, err = netns.New(); err == nil {
			for file, value := range map[string]string{"ip_forward": "1", "conf/all/send_redirects": "0", "conf/default/send_redirects": "0"} {
				if err == nil {
					err = os.WriteFile("/proc/thread-self/root/proc/sys/net/ipv4/"+file, []byte(value), 0)
				}
			}
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if err := suite.Lab.Attach(fmt.Sprintf("nat%d", n), int(r.ns), r.public()+"/24"); err != nil {
		t.Fatal(err)
	}
	h, err := netlink.NewHandleAt(r.ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	nic, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	inside, _ := netlink.ParseAddr(fmt.Sprintf("10.78.%d.1/24", n))
	if err := h.AddrAdd(nic, inside); err != nil {
		t.Fatal(err)
	}
	r.rules(t)
	r.give(t, 2)
	return r
}

func (r *router) public() string { return fmt.Sprintf("10.77.0.%d", 240+int(r.n)) }

// give gives the device an address behind the router.
func (r *router) give(t *testing.T, host int) {
	t.Helper()
	if err := r.device.SetAddress("eth0", fmt.Sprintf("10.78.%d.%d/24", r.n, host)); err != nil {
		t.Fatal(err)
	}
}

// route leads the device's packets through the router.
func (r *router) route(t *testing.T, ctx context.Context) {
	t.Helper()
	labtest.Must(t, ctx, r.device, "ip", "route", "replace", "default", "via", fmt.Sprintf("10.78.%d.1", r.n))
}

// noUDP are the addresses to which the router lets no UDP out; 0.0.0.0 is all.
func (r *router) rules(t *testing.T, noUDP ...string) {
	t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(r.ns)))
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Name: "router", Family: nftables.TableFamilyIPv4}
	nat := &nftables.Table{Name: "nat", Family: nftables.TableFamilyIPv4}
	c.AddTable(table) // so that deleting it cannot fail
	c.DelTable(table)
	c.AddTable(table)
	forward := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	drop := []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	for _, to := range noUDP {
		udp := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}}}
		if to != "0.0.0.0" {
			udp = append(udp, network(16, to, 4)...)
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: append(udp, drop...)})
	}
	in := c.AddChain(&nftables.Chain{Name: "in", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: append(network(12, "10.77.0.0", 3), drop...)})
	if len(noUDP) == 0 { // the first time
		c.AddTable(nat)
		post := c.AddChain(&nftables.Chain{Name: "post", Table: nat, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
		c.AddRule(&nftables.Rule{Table: nat, Chain: post, Exprs: append(network(12, fmt.Sprintf("10.78.%d.0", r.n), 3), &expr.Masq{})})
	}
	if err := c.Flush(); err != nil {
		t.Fatalf("%v (needs nf_tables with nat in the kernel)", err)
	}
}

// network matches the first bytes of the address at the offset of the IPv4 header.
func network(offset uint32, address string, bytes int) []expr.Any {
	var a [4]byte
	fmt.Sscanf(strings.ReplaceAll(address, ".", " "), "%d %d %d %d", &a[0], &a[1], &a[2], &a[3])
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(bytes)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a[:bytes]},
	}
}
