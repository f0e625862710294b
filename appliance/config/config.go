// Package config is what the user wants of a device: one small YAML file,
// /etc/rivulet/config.yaml, under what the environment and the flags say.
//
//	defaults  <  file  <  environment  <  flags
//
// It reads that file, the files that it names (a secret, kubeconfigs, certificates)
// and the names of the device's interfaces, and alone writes
// <state>/config.good.yaml: the last file without a mistake. After a restart the file
// is read again. A file with a mistake is refused as a whole: the last good one goes on
// being used, or the defaults where there never was one, and every mistake is told
// with file, line, column and a cure. It never stops the appliance.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"rivulet/fabric/ipam"
	"rivulet/offload/offer"
)

// DefaultPath is where the file is unless --config or RIVULET_CONFIG says otherwise.
const DefaultPath = "/etc/rivulet/config.yaml"

// Config is everything that can be set. The zero value of a field is "not set";
// WithDefaults says what that means.
type Config struct {
	// Name is this cluster's for its peers; empty is the name of its node.
	Name  string `yaml:"name,omitempty" json:"name,omitempty"`
	LAN   LAN    `yaml:"lan,omitempty" json:"lan,omitzero"`
	Trust Trust  `yaml:"trust,omitempty" json:"trust,omitzero"`
	// Peers are where to look for clusters beyond the LAN; ParsePeer reads one.
	Peers      []string   `yaml:"peers,omitempty,flow" json:"peers,omitempty"`
	Tunnel     Tunnel     `yaml:"tunnel,omitempty" json:"tunnel,omitzero"`
	Share      Share      `yaml:"share,omitempty" json:"share,omitzero"`
	VClusters  VClusters  `yaml:"vclusters,omitempty" json:"vclusters,omitzero"`
	Reserve    Reserve    `yaml:"reserve,omitempty" json:"reserve,omitzero"`
	Registries Registries `yaml:"registries,omitempty" json:"registries,omitzero"`
	// PeerImages lets pods away get their images from their home; nil is true.
	PeerImages *bool   `yaml:"peerImages,omitempty" json:"peerImages,omitempty"`
	Burst      []Burst `yaml:"burst,omitempty" json:"burst,omitempty"`
	// Ingress serves Ingresses on ports 80 and 443 of the LAN.
	Ingress bool `yaml:"ingress,omitempty" json:"ingress,omitempty"`
	// StatusPage shows a page to the LAN; nil is what the machine is: true on a device of
	// our image, false on somebody's PC.
	StatusPage *bool `yaml:"statusPage,omitempty" json:"statusPage,omitempty"`
}

// ImagesPass reports whether pods away get their images from their home: those of this
// cluster from here, tenants' from theirs.
func (c Config) ImagesPass() bool { return c.PeerImages == nil || *c.PeerImages }

// LAN is where neighbours are looked for, and trusted.
type LAN struct {
	// Interfaces are names, or patterns as of path.Match; empty is every LAN interface.
	Interfaces []string `yaml:"interfaces,omitempty,flow" json:"interfaces,omitempty"`
}

// The modes of trust.
const (
	TrustLAN   = "lan"   // clusters met on the same link, at first sight
	TrustGroup = "group" // those that prove the group's secret
	TrustAsk   = "ask"   // those that a person approves
)

// Trust is whom this cluster makes its peer.
type Trust struct {
	Mode string `yaml:"mode,omitempty" json:"mode,omitempty"`
	// Secret is the group's, out of the file or out of SecretFile.
	Secret     Secret `yaml:"secret,omitempty" json:"secret,omitempty"`
	SecretFile string `yaml:"secretFile,omitempty" json:"secretFile,omitempty"`
}

// Tunnel is about the ways to peers.
type Tunnel struct {
	// Relay lets peers reach each other through this device; nil is true.
	Relay *bool `yaml:"relay,omitempty" json:"relay,omitempty"`
	// StreamPort is one more TCP port on which peers may come where UDP does not pass;
	// 0 is none.
	StreamPort int64 `yaml:"streamPort,omitempty" json:"streamPort,omitempty"`
	// PeerCIDR is the block that peers' pods have their addresses from, here; empty is ipam.Default.
	PeerCIDR string `yaml:"peerCIDR,omitempty" json:"peerCIDR,omitempty"`
}

// Block is PeerCIDR, or the default.
func (t Tunnel) Block() netip.Prefix {
	if p, err := netip.ParsePrefix(t.PeerCIDR); err == nil {
		return p
	}
	return ipam.Default
}

// Relays reports whether peers may reach each other through this device.
func (t Tunnel) Relays() bool { return t.Relay == nil || *t.Relay }

// Share bounds what pods of others have together: those of all peers, or of all virtual clusters.
type Share struct {
	CPU     Percent `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory  Percent `yaml:"memory,omitempty" json:"memory,omitempty"`
	MaxPods *int64  `yaml:"maxPods,omitempty" json:"maxPods,omitempty"`
}

// VClusters is what virtual clusters have together.
type VClusters struct {
	Share `yaml:",inline"`
	// Ports are what they may open on the LAN: "31000-31199"; empty is nothing.
	Ports string `yaml:"ports,omitempty" json:"ports,omitempty"`
}

// PortRange is Ports, first and last; 0, 0 is none.
func (v VClusters) PortRange() (first, last uint16) {
	if v.Ports != "" {
		_, _ = fmt.Sscanf(v.Ports, "%d-%d", &first, &last) // checked when it was read
	}
	return first, last
}

// Lent are the shares as offers are computed from.
func (c Config) Lent() offer.Shares {
	return offer.Shares{Peers: c.Share.lent(), Hosted: c.VClusters.lent()}
}

// lent has 0 for "not set".
func (s Share) lent() offer.Share {
	out := offer.Share{CPU: cmp.Or(s.CPU.Value(), offer.Nothing), Memory: cmp.Or(s.Memory.Value(), offer.Nothing)}
	if s.MaxPods != nil {
		out.MaxPods = cmp.Or(*s.MaxPods, offer.Nothing)
	}
	return out
}

// Reserve is kept from all pods, our own too; Kubernetes quantities.
type Reserve struct {
	CPU    string `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory string `yaml:"memory,omitempty" json:"memory,omitempty"`
}

// Burst is a cluster without Rivulet that pods may be sent to.
type Burst struct {
	Name       string `yaml:"name" json:"name"`
	Kubeconfig string `yaml:"kubeconfig" json:"kubeconfig"`
	// Context is the one to use of the kubeconfig; empty is its current one.
	Context string `yaml:"context,omitempty" json:"context,omitempty"`
	// Namespace is where the pods go; empty is the kubeconfig's own.
	Namespace string      `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Limits    BurstLimits `yaml:"limits,omitempty" json:"limits,omitzero"`
	// What these may be, offload/target/external says.
	Network     string `yaml:"network,omitempty" json:"network,omitempty"`
	Image       string `yaml:"image,omitempty" json:"image,omitempty"`
	Order       string `yaml:"order,omitempty" json:"order,omitempty"`
	PodSecurity string `yaml:"podSecurity,omitempty" json:"podSecurity,omitempty"`
	Arch        string `yaml:"arch,omitempty" json:"arch,omitempty"`
}

// BurstLimits bound what pods may ask for there, in all; Kubernetes quantities.
type BurstLimits struct {
	CPU    string `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory string `yaml:"memory,omitempty" json:"memory,omitempty"`
	Pods   string `yaml:"pods,omitempty" json:"pods,omitempty"`
}

// String is the limits as rivulet burst add takes them.
func (l BurstLimits) String() string {
	var out []string
	for _, one := range [][2]string{{"cpu", l.CPU}, {"memory", l.Memory}, {"pods", l.Pods}} {
		if one[1] != "" {
			out = append(out, one[0]+"="+one[1])
		}
	}
	return strings.Join(out, ",")
}

// WithDefaults returns what is in force where c says nothing. nodeName is the
// device's node, named at its first start.
func (c Config) WithDefaults(nodeName string) Config {
	if c.Name == "" {
		c.Name = nodeName
	}
	if c.Trust.Mode == "" {
		c.Trust.Mode = TrustLAN
	}
	if c.Tunnel.Relay == nil {
		yes := true
		c.Tunnel.Relay = &yes
	}
	if c.Tunnel.PeerCIDR == "" {
		c.Tunnel.PeerCIDR = ipam.Default.String()
	}
	for _, s := range []*Share{&c.Share, &c.VClusters.Share} {
		s.CPU, s.Memory = cmp.Or(s.CPU, "100%"), cmp.Or(s.Memory, "100%")
	}
	return c
}
