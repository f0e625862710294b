package k3s

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/k3s-io/k3s/pkg/agent/flannel"
	"github.com/k3s-io/k3s/pkg/agent/netpol"
	"github.com/k3s-io/k3s/pkg/daemons/config"
	"github.com/k3s-io/k3s/pkg/signals"
	"github.com/k3s-io/k3s/pkg/util"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine/iptables"
)

// subnetFile is flannel's file of this node's part of the pod network, which the CNI plugin reads.
const subnetFile = "/run/flannel/subnet.env"

// CNI prepares the network of this node's pods with flannel's files and rules, and without its daemon: nodes reach each
// other through the tunnel (docs/design/nodes.md), whose routes the daemon would remove. k3s's controller of
// NetworkPolicies runs where its flag allows it: the appliance has its own (appliance/addons/netpol).
func (*parts) CNI(ctx context.Context, wg *sync.WaitGroup, cfg *config.Node) error {
	if err := flannel.Prepare(ctx, cfg); err != nil {
		return err
	}
	go func() {
		if err := podNetwork(ctx, cfg); err != nil && ctx.Err() == nil {
			signals.RequestShutdown(fmt.Errorf("the network of pods: %w", err))
		}
	}()
	if cfg.AgentConfig.DisableNPC {
		return nil
	}
	return netpol.Run(ctx, wg, cfg)
}

// podNetwork waits until this node has a part of the pod network, and writes the rules and the file for it.
func podNetwork(ctx context.Context, cfg *config.Node) error {
	subnet, err := podCIDR(ctx, cfg.AgentConfig.KubeConfigKubelet, cfg.AgentConfig.NodeName)
	if err != nil {
		return err
	}
	whole, err := netip.ParsePrefix(cfg.AgentConfig.ClusterCIDR.String())
	if err != nil {
		return err
	}
	rules := &iptables.PodRules{Pods: whole, Own: subnet, Tunnel: fixed.Tunnel, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	rules.Start(ctx)
	return writeSubnet(ip4(whole), ip4(subnet))
}

// writeSubnet replaces the file as a whole: the plugin reads it at any time.
func writeSubnet(whole, own ip.IP4Net) error {
	first := own
	first.IP++
	// The MTU is that of the loopback interface: the plugin uses the links' if that is smaller.
	text := fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s\nFLANNEL_MTU=65536\nFLANNEL_IPMASQ=true\n", whole, first)
	if err := os.MkdirAll(filepath.Dir(subnetFile), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(subnetFile+".part", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(subnetFile+".part", subnetFile)
}

func ip4(p netip.Prefix) ip.IP4Net {
	a := p.Addr().As4()
	return ip.IP4Net{IP: ip.FromBytes(a[:]), PrefixLen: uint(p.Bits())}
}

// podCIDR waits for the part of the pod network that the cluster gives a node. A node may read itself alone.
func podCIDR(ctx context.Context, kubeconfig, name string) (netip.Prefix, error) {
	client, err := util.GetClientSet(kubeconfig)
	if err != nil {
		return netip.Prefix{}, err
	}
	only := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceNone, fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	ev, err := toolswatch.UntilWithSync(ctx, only, &corev1.Node{}, nil, func(ev watch.Event) (bool, error) {
		node, ok := ev.Object.(*corev1.Node)
		return ok && node.Spec.PodCIDR != "", nil
	})
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(ev.Object.(*corev1.Node).Spec.PodCIDR)
}
