package doctor

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/appliance/addons/netpol"
	"rivulet/appliance/machine/host"
)

// The names of what Try creates; kernel.go has the purpose of each.
const (
	tryNetns    = "network namespaces"
	tryVeth     = "veth"
	tryBridge   = "bridge"
	tryTun      = "tun"
	tryNft      = "nftables nat and fib"
	tryPolicies = "tables of network policies"
	tryIptables = "iptables matches of kube-proxy"
)

// kubeProxyRules are one rule of each kind of kube-proxy and of port mappings of containers.
const kubeProxyRules = `*nat
:RIVULET-TRY - [0:0]
-A RIVULET-TRY -m comment --comment "a service" -m addrtype --dst-type LOCAL -j MARK --set-xmark 0x4000/0x4000
-A RIVULET-TRY -m statistic --mode random --probability 0.5 -j RETURN
-A RIVULET-TRY -m recent --rcheck --seconds 10800 --reap --name RIVULETTRY --mask 255.255.255.255 --rsource -j RETURN
-A RIVULET-TRY -p tcp -m multiport --dports 80,443 -j DNAT --to-destination 192.0.2.1:80
-A RIVULET-TRY -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
COMMIT
*filter
:RIVULET-TRY - [0:0]
-A RIVULET-TRY -m conntrack --ctstate INVALID -j DROP
-A RIVULET-TRY -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`

// Try creates everything in a namespace that ends with its thread.
func (state bundled) Try(ctx context.Context) (map[string]error, error) {
	type result struct {
		found map[string]error
		err   error
	}
	done := make(chan result, 1)
	go func() {
		err := host.OnThread(func() error {
			err := unix.Unshare(unix.CLONE_NEWNET)
			if err == nil {
				done <- result{found: state.tryHere(ctx)}
			}
			return err
		})
		if err != nil {
			done <- result{map[string]error{tryNetns: err}, err}
		}
	}()
	select {
	case r := <-done:
		return r.found, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (state bundled) tryHere(ctx context.Context) map[string]error {
	found := map[string]error{tryNetns: nil}
	name := func(n string) netlink.LinkAttrs { a := netlink.NewLinkAttrs(); a.Name = n; return a }
	h, err := netlink.NewHandle()
	if err != nil {
		return map[string]error{tryNetns: err}
	}
	defer h.Close()
	found[tryVeth] = h.LinkAdd(&netlink.Veth{LinkAttrs: name("try-a"), PeerName: "try-b"})
	found[tryBridge] = h.LinkAdd(&netlink.Bridge{LinkAttrs: name("try-br")})
	found[tryTun] = tryTunDevice()
	found[tryNft] = tryNftables()
	found[tryPolicies] = netpol.Try()
	if path, err := state.find("iptables-restore"); err == nil {
		cmd := exec.CommandContext(ctx, path, "--noflush")
		cmd.Stdin = strings.NewReader(kubeProxyRules)
		if out, err := cmd.CombinedOutput(); err != nil {
			found[tryIptables] = fmt.Errorf("%w: %.200s", err, strings.Join(strings.Fields(string(out)), " "))
		} else {
			found[tryIptables] = nil
		}
	}
	return found
}

// tryTunDevice creates a TUN device, which is removed when its file is closed.
func tryTunDevice() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("try-tun")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make a TUN device: %w", err)
	}
	return nil
}

// tryNftables creates the two kinds of rules of the tunnel.
func tryNftables() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "try", Family: nftables.TableFamilyIPv4})
	keep := c.AddChain(&nftables.Chain{Name: "keep", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(90)})
	c.AddRule(&nftables.Rule{Table: table, Chain: keep, Exprs: []expr.Any{
		&expr.Immediate{Register: 1, Data: []byte{10, 42, 0, 0}},
		&expr.Immediate{Register: 2, Data: []byte{10, 42, 255, 255}},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 2, Prefix: true},
	}})
	guard := c.AddChain(&nftables.Chain{Name: "guard", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-150)})
	c.AddRule(&nftables.Rule{Table: table, Chain: guard, Exprs: []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}})
	return c.Flush()
}
