package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/appliance/health"
	"rivulet/appliance/machine/firewall"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/fabric/reach"
	"rivulet/offload/elsewhere"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
	"rivulet/offload/nodeagent/podnet"
)

// What a device has beside what the bare tunnel needs.
const (
	serviceCIDR = "10.43.0.0/16"
	clusterDNS  = "10.43.0.10"
	nodeRange   = "100.127.0.0/16"
	portAPI     = 6443
	portKubelet = 10250
	twin        = "a-default" // the namespace in which b has a's pod
)

// furnish gives the nodes the tables of two devices of which b runs a pod of a: on both the
// host's firewall and what the peer reaches; on b the isolation of tenants, and in the pod
// the addresses of its home. The tunnel makes its own. They are those of the product, made by
// one pass of what keeps them there.
func (n *network) furnish(ctx context.Context, dir string) error {
	for _, s := range []*side{n.a, n.b} {
		if err := s.node.Do(wall); err != nil {
			return err
		}
	}
	here := netip.MustParseAddr(podAddress)
	if err := errors.Join(n.a.reach(reach.Rules{Ours: []netip.Addr{n.b.seenPod()}}), n.b.reach(reach.Rules{Tenants: []netip.Addr{here}})); err != nil {
		return err
	}
	results, err := os.MkdirTemp(dir, "results-")
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	defer os.RemoveAll(results)
	made, err := n.b.result(filepath.Join(results, "pod"))
	if err != nil {
		return err
	}
	return n.b.node.Do(func() error { return n.tenant(ctx, results, made) })
}

// reach sets what comes out of the tunnel.
func (s *side) reach(r reach.Rules) error {
	r.Interface, r.Own = tunInterface, netip.MustParseAddr(tunAddress)
	rules := nft.NewGuard(s.node.FD(), slog.New(slog.DiscardHandler)).Tables(reach.Table, reach.Family)
	if _, err := rules.Apply([]nft.Program{reach.Program(r)}); err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	return nil
}

// once is the context for one pass of what otherwise goes on until it ends.
func once() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func wall() error {
	problems := &health.Tracker{}
	firewall.Run(once(), firewall.Config{
		Own:      []string{"lo", podBridge, tunInterface},
		Networks: []netip.Prefix{netip.MustParsePrefix(podCIDR), netip.MustParsePrefix(serviceCIDR), netip.MustParsePrefix(nodeRange)},
		Ports:    []uint16{portAPI, portKubelet},
		Health:   problems, Guard: nft.NewGuard(0, slog.New(slog.DiscardHandler)),
	}, nil)
	if p := problems.Problems(); len(p) > 0 {
		return errors.New(p[0].Text)
	}
	return nil
}

// result writes what the container network has made for the pod.
func (s *side) result(file string) (made podnet.Pod, err error) {
	var mac string
	err = s.pod.Do(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = eth.Attrs().HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		return made, fmt.Errorf("wire: %w", err)
	}
	args := [][2]string{{"K8S_POD_NAMESPACE", twin}, {"K8S_POD_NAME", "pod"}, {"K8S_POD_UID", "1"}}
	text, err := json.Marshal(map[string]any{"cniArgs": args, "result": map[string]any{
		"interfaces": []map[string]string{{"name": podVeth}, {"name": "eth0", "mac": mac, "sandbox": "pod"}},
		"ips":        []map[string]string{{"address": podAddress + "/24"}},
	}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return made, fmt.Errorf("wire: %w", err)
	}
	return podnet.Pod{Namespace: twin, Name: "pod", UID: "1", Addr: netip.MustParseAddr(podAddress), Veth: podVeth, MAC: mac}, nil
}

// tenant is called on a thread in b's node, which ends afterwards.
func (n *network) tenant(ctx context.Context, results string, made podnet.Pod) error {
	const consumer peer.ID = "a"
	log := slog.New(slog.DiscardHandler)
	pods := netip.MustParsePrefix(podCIDR)
	links := []peer.Link{{ID: consumer, PeerCIDR: pods, PeerMappedCIDR: n.a.as, LocalMappedCIDR: n.b.as}}
	twins := func() map[string]peer.ID { return map[string]peer.ID{twin: consumer} }
	services := homeaddr.Services{{Addr: netip.MustParseAddr("10.43.5.5")}: netip.MustParseAddr("10.43.9.9")}
	var failed error
	report := func(err error) { failed = errors.Join(failed, err) }

	if err := n.b.show(); err != nil {
		return err
	}
	home := homeaddr.New(netip.MustParseAddr(clusterDNS), netip.MustParsePrefix(serviceCIDR))
	_ = home.Run(once(), homeaddr.Config{Results: results, Twins: twins, Services: func(peer.ID) homeaddr.Services { return services },
		View: func(peer.ID) homeaddr.View { return homeaddr.ViewOf(links, consumer, pods, elsewhere.Under{}) }, Report: report, Log: log})
	own, err := home.Hold(ctx, made, consumer, true)
	if err == nil && own != n.b.seenPod() {
		err = fmt.Errorf("wire: home calls the tenant %s, not %s", own, n.b.seenPod())
	}
	if err != nil {
		return err
	}
	_ = isolation.Run(once(), isolation.Config{
		Guard: nft.NewGuard(0, log),
		Held:  isolation.NewHeld(), Results: results, Pods: pods, DNS: netip.MustParseAddr(clusterDNS), Twins: twins,
		Endpoints: func(peer.ID) iter.Seq[netip.Addr] { return slices.Values([]netip.Addr(nil)) },
		Links:     func() []peer.Link { return links },
		Networks:  func() []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(n.a.lan, 24).Masked()} },
		Report:    func(err error, _ map[peer.ID]error) { report(err) }, Log: log,
	})
	return failed
}

// show lets this thread alone see the pod's namespace where containerd keeps such: the mount
// ends with the thread.
func (s *side) show() error {
	const run = "/var/run"
	at := filepath.Join(run, "netns")
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("wire: a mount namespace: %w", err)
	}
	err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", run, "tmpfs", 0, ""),
		os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, "pod"), nil, 0o600),
		unix.Mount(fmt.Sprintf("/proc/self/fd/%d", s.pod.FD()), filepath.Join(at, "pod"), "", unix.MS_BIND, ""))
	if err != nil {
		return fmt.Errorf("wire: name a network namespace: %w", err)
	}
	return nil
}
