// Package config is the user's configuration of a device: one small YAML file, /etc/rivulet/config.yaml, overridden by
// the environment and by flags.
//
//	defaults  <  file  <  environment  <  flags
//
// It reads that file, the files that it names (a secret, kubeconfigs, certificates) and the names of the device's
// interfaces, and alone writes <state>/config.good.yaml: the last file without a mistake. Restart: the file is read
// again. A file with a mistake is refused as a whole: the last good one stays in use, or the defaults if there was
// none, and every mistake is reported with file, line, column and a cure. It never stops the appliance.
package config

import (
	"cmp"
	"net/netip"
	"strings"

	"rivulet/fabric/ipam"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
)

// DefaultPath is the path of the file without --config and RIVULET_CONFIG.
const DefaultPath = "/etc/rivulet/config.yaml"

// Config has all settings. The zero value of a field is "not set"; WithDefaults has its meaning.
type Config struct {
	// Name is this cluster's for its peers; empty is the name of its node.
	Name string `yaml:"name,omitempty" json:"name,omitempty"`
	// Join is a token of another cluster's, of which a device without pods of its own becomes a node.
	Join  Secret `yaml:"join,omitempty" json:"join,omitempty"`
	LAN   LAN    `yaml:"lan,omitempty" json:"lan,omitzero"`
	Trust Trust  `yaml:"trust,omitempty" json:"trust,omitzero"`
	// Peers are addresses of clusters beyond the LAN; ParsePeer parses one.
	Peers      []string   `yaml:"peers,omitempty,flow" json:"peers,omitempty"`
	Tunnel     Tunnel     `yaml:"tunnel,omitempty" json:"tunnel,omitzero"`
	Share      Share      `yaml:"share,omitempty" json:"share,omitzero"`
	VClusters  VClusters  `yaml:"vclusters,omitempty" json:"vclusters,omitzero"`
	Reserve    Reserve    `yaml:"reserve,omitempty" json:"reserve,omitzero"`
	Proxy      Proxy      `yaml:"proxy,omitempty" json:"proxy,omitzero"`
	Registries Registries `yaml:"registries,omitempty" json:"registries,omitzero"`
	// Datastore is the SQL database with the cluster's objects, as of sqlserver.Parse; empty is a file of this device's.
	Datastore Secret `yaml:"datastore,omitempty" json:"datastore,omitempty"`
	// PeerImages: offloaded pods get their images from their home; nil is true.
	PeerImages *bool   `yaml:"peerImages,omitempty" json:"peerImages,omitempty"`
	Burst      []Burst `yaml:"burst,omitempty" json:"burst,omitempty"`
	// VirtualNodes selects the peers that get a virtual node, as of policy.ParseNodes; empty is all.
	VirtualNodes string   `yaml:"virtualNodes,omitempty" json:"virtualNodes,omitempty"`
	Services     Services `yaml:"services,omitempty" json:"services,omitzero"`
	// Ingress serves Ingresses on ports 80 and 443 of the LAN.
	Ingress bool `yaml:"ingress,omitempty" json:"ingress,omitempty"`
	// Fleet shows peers of the same group a summary of this device.
	Fleet bool `yaml:"fleet,omitempty" json:"fleet,omitempty"`
	// StatusPage shows a page to the LAN; nil depends on the machine: true with the device image, false on a PC.
	StatusPage *bool `yaml:"statusPage,omitempty" json:"statusPage,omitempty"`
	// Console is the web console; nil as for StatusPage. ConsoleCode is the hash of a code that signs in to it.
	Console     *bool  `yaml:"console,omitempty" json:"console,omitempty"`
	ConsoleCode string `yaml:"consoleCode,omitempty" json:"consoleCode,omitempty"`
	// Metrics is who may scrape the metrics: one of the Metrics constants; empty is MetricsOff.
	Metrics string `yaml:"metrics,omitempty" json:"metrics,omitempty"`
}

// Who may scrape the metrics, with an access.
const (
	MetricsLAN  = "lan"  // hosts on a link of a LAN
	MetricsPods = "pods" // pods of this cluster
	MetricsOff  = "off"  // nobody
)

// ImagesPass reports whether offloaded pods get their images from their home: this cluster's from here, tenants' from
// theirs.
func (c Config) ImagesPass() bool { return c.PeerImages == nil || *c.PeerImages }

// Nodes are the peers that VirtualNodes selects.
func (c Config) Nodes() policy.Nodes {
	rule, err := policy.ParseNodes(c.VirtualNodes)
	if err != nil {
		return policy.Nodes{} // the file was checked
	}
	return rule
}

func checkNodes(s string) error {
	_, err := policy.ParseNodes(s)
	return err
}

// Services selects the peers and the namespaces between which Services are shared.
type Services struct {
	// Import is one of the constants below; empty is ServicesApproved.
	Import string `yaml:"import,omitempty" json:"import,omitempty"`
	// Namespaces are those that take part; empty is all but default and kube-*.
	Namespaces []string `yaml:"namespaces,omitempty,flow" json:"namespaces,omitempty"`
}

// The peers with which Services are shared.
const (
	ServicesOff      = "off"
	ServicesGroup    = "group"    // those that have proved the group's secret
	ServicesApproved = "approved" // those trusted by more than the LAN: by approval, an invite or the group's secret
	ServicesAll      = "all"
)

// LAN selects where neighbours are discovered, and trusted.
type LAN struct {
	// Interfaces are names, or patterns as of path.Match; empty is every LAN interface.
	Interfaces []string `yaml:"interfaces,omitempty,flow" json:"interfaces,omitempty"`
}

// The modes of trust.
const (
	TrustLAN   = "lan"   // clusters discovered on the same link, on first use
	TrustGroup = "group" // clusters that prove the group's secret
	TrustAsk   = "ask"   // clusters that an operator approves
)

// Trust selects the clusters that become peers.
type Trust struct {
	Mode string `yaml:"mode,omitempty" json:"mode,omitempty"`
	// Secret is the group's, from the file or from SecretFile.
	Secret     Secret `yaml:"secret,omitempty" json:"secret,omitempty"`
	SecretFile string `yaml:"secretFile,omitempty" json:"secretFile,omitempty"`
	// Broker are the brokers, as broker.ParseAddress reads them.
	Broker []string `yaml:"broker,omitempty,flow" json:"broker,omitempty"`
}

// Tunnel has the settings of paths to peers.
type Tunnel struct {
	// Relay: peers may reach each other through this device; nil is true.
	Relay *bool `yaml:"relay,omitempty" json:"relay,omitempty"`
	// StreamPort is another TCP port for peers without UDP; 0 is none.
	StreamPort int64 `yaml:"streamPort,omitempty" json:"streamPort,omitempty"`
	// PeerCIDR is the address block for peers' pods here; empty is ipam.Default.
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

// Share bounds the total of other clusters' pods: of all peers, or of all virtual clusters.
type Share struct {
	CPU     Percent `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory  Percent `yaml:"memory,omitempty" json:"memory,omitempty"`
	MaxPods *int64  `yaml:"maxPods,omitempty" json:"maxPods,omitempty"`
}

// VClusters bounds the total of virtual clusters.
type VClusters struct {
	Share `yaml:",inline"`
	// Ports are what they may open on the LAN: "31000-31199"; empty is nothing.
	Ports string `yaml:"ports,omitempty" json:"ports,omitempty"`
}

// PortRange is Ports, none if they are not valid.
func (v VClusters) PortRange() offer.Ports {
	ports, _ := offer.ParsePorts(v.Ports)
	return ports
}

// Lent are the shares for the computation of offers.
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

// Reserve is kept from all pods, this cluster's included; Kubernetes quantities.
type Reserve struct {
	CPU    string `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory string `yaml:"memory,omitempty" json:"memory,omitempty"`
}

// Burst is a cluster without Rivulet to which pods may be sent.
type Burst struct {
	Name       string `yaml:"name" json:"name"`
	Kubeconfig string `yaml:"kubeconfig" json:"kubeconfig"`
	// Context is that of the kubeconfig; empty is its current one.
	Context string `yaml:"context,omitempty" json:"context,omitempty"`
	// Namespace is for the pods; empty is the kubeconfig's own.
	Namespace string      `yaml:"namespace,omitempty" json:"namespace,omitempty"`
	Limits    BurstLimits `yaml:"limits,omitempty" json:"limits,omitzero"`
	// See offload/target/external for the values.
	Network     string `yaml:"network,omitempty" json:"network,omitempty"`
	Image       string `yaml:"image,omitempty" json:"image,omitempty"`
	Order       string `yaml:"order,omitempty" json:"order,omitempty"`
	Price       string `yaml:"price,omitempty" json:"price,omitempty"`
	PodSecurity string `yaml:"podSecurity,omitempty" json:"podSecurity,omitempty"`
	Arch        string `yaml:"arch,omitempty" json:"arch,omitempty"`
	// Insecure allows a kubeconfig that does not verify its server.
	Insecure bool `yaml:"insecureSkipTLSVerify,omitempty" json:"insecureSkipTLSVerify,omitempty"`
}

// BurstLimits bound the total requests of pods there; Kubernetes quantities.
type BurstLimits struct {
	CPU    string `yaml:"cpu,omitempty" json:"cpu,omitempty"`
	Memory string `yaml:"memory,omitempty" json:"memory,omitempty"`
	Pods   string `yaml:"pods,omitempty" json:"pods,omitempty"`
}

// String is the limits in the form of rivulet burst add.
func (l BurstLimits) String() string {
	var out []string
	for _, one := range [][2]string{{"cpu", l.CPU}, {"memory", l.Memory}, {"pods", l.Pods}} {
		if one[1] != "" {
			out = append(out, one[0]+"="+one[1])
		}
	}
	return strings.Join(out, ",")
}

// WithDefaults sets defaults where c has no value. nodeName is the device's node, named at its first start.
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
