package tunnel

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
)

// Config is the whole desired state of the data plane. The supervisor sends it as one piece; applying the same Config
// twice changes nothing and drops no packet.
type Config struct {
	PrivateKey wgkey.Private `json:"privateKey"`
	// Port is the UDP port WireGuard listens on.
	Port      uint16 `json:"port"`
	Interface string `json:"interface"`
	// Leased: it may be in force only until the deadline (Server.SetDeadline). A change of it makes a new device.
	Leased bool `json:"leased,omitempty"`
	// MTU of the TUN device, bytes.
	MTU int `json:"mtu"`
	// Address is this cluster's address inside the tunnel, one of PodCIDR that no pod gets.
	Address netip.Addr `json:"address"`
	// ControlPort is the one TCP port of Address that is open to peers.
	ControlPort uint16       `json:"controlPort"`
	PodCIDR     netip.Prefix `json:"podCIDR"`
	// Peers: of two that claim the same key or overlapping prefixes, the first is served.
	Peers []Peer `json:"peers"`
	// Candidates and Streams are this device's addresses for UDP and for streams over TCP, advertised to peers.
	Candidates []netip.AddrPort `json:"candidates,omitempty"`
	Streams    []netip.AddrPort `json:"streams,omitempty"`
	// StreamPorts are TCP ports on which the data plane itself accepts streams.
	StreamPorts []uint16 `json:"streamPorts,omitempty"`
	// Relay lets peers reach each other through this device.
	Relay       bool `json:"relay"`
	StreamsOnly bool `json:"streamsOnly,omitempty"`
	// Paths is what is known of the paths to peers beside their Endpoint.
	Paths []PeerPaths `json:"paths,omitempty"`
	// Brokers relay to peers that are reached in no other way. They are no peers.
	Brokers []Broker `json:"brokers,omitempty"`
	// Node is this device's own address in Nodes, the range of nodes' addresses. Both are zero in a cluster of one node.
	Node  netip.Addr   `json:"node,omitzero"`
	Nodes netip.Prefix `json:"nodes,omitzero"`
}

// Broker is a relay that is no peer: package broker.
type Broker struct {
	ID        string           `json:"id"`
	PublicKey wgkey.Public     `json:"publicKey"`
	UDP       []netip.AddrPort `json:"udp"`
	TCP       []netip.AddrPort `json:"tcp"` // for streams
}

type PeerPaths struct {
	ID  string           `json:"id"`
	UDP []netip.AddrPort `json:"udp,omitempty"`
	TCP []netip.AddrPort `json:"tcp,omitempty"` // for streams
	// AnnouncedUDP and AnnouncedTCP are what somebody has announced as the peer's addresses.
	AnnouncedUDP []netip.AddrPort `json:"announcedUDP,omitempty"`
	AnnouncedTCP []netip.AddrPort `json:"announcedTCP,omitempty"`
}

type Peer struct {
	ID        string       `json:"id"`
	PublicKey wgkey.Public `json:"publicKey"`
	// Endpoint is the assumed address of the peer; the zero value keeps the present one.
	Endpoint netip.AddrPort `json:"endpoint"`
	// Keepalive is the persistent keepalive, whole seconds; 0 is off.
	Keepalive time.Duration `json:"keepalive"`
	// LocalMappedCIDR is the prefix under which the peer sees PodCIDR, PeerMappedCIDR that under which this cluster
	// sees the peer's pods.
	LocalMappedCIDR netip.Prefix `json:"as"`
	PeerMappedCIDR  netip.Prefix `json:"remote"`
	// Address is the peer's own end of the tunnel as this cluster sees it, one of PeerMappedCIDR. Without it the path
	// to the peer is not measured.
	Address netip.Addr `json:"address,omitzero"`
	// Behind are prefixes that are reached through the peer without translation: it is a node of this cluster.
	Behind []netip.Prefix `json:"behind,omitempty"`
}

// behind are all prefixes behind other nodes of this cluster.
func (c Config) behind() (out []netip.Prefix) {
	for _, p := range c.Peers {
		out = append(out, p.Behind...)
	}
	return out
}

// leaf reports whether all of the cluster's other pods are behind one peer, which decides what gets here: this device is a
// worker.
func (c Config) leaf() bool { return slices.Contains(c.behind(), c.PodCIDR.Masked()) }

// equal reports whether WireGuard has nothing to change.
func (p Peer) equal(o Peer) bool { return reflect.DeepEqual(p, o) }

type Status struct {
	PID     int          `json:"pid"`
	Version string       `json:"version"`
	Port    uint16       `json:"port"` // 0 while no Config is in force
	Peers   []PeerStatus `json:"peers"`
	// Dropped counts packets refused by translation since start.
	Dropped uint64 `json:"dropped"`
	// Seen are this device's server-reflexive addresses: where peers see it, other than at its Candidates.
	Seen []netip.AddrPort `json:"seen,omitempty"`
	// Carried counts packets between two peers relayed by this device.
	Carried uint64 `json:"carried"`
	// Brokers are the paths to each.
	Brokers []BrokerStatus `json:"brokers,omitempty"`
	// StreamPort is why a port of StreamPorts is not open; empty if all are.
	StreamPort string `json:"streamPort,omitempty"`
}

// BrokerStatus has the paths to a broker, the one in use first.
type BrokerStatus struct {
	ID    string             `json:"id"`
	Paths []paths.PathStatus `json:"paths,omitempty"`
}

// PeerStatus is the data plane's view of one peer.
type PeerStatus struct {
	ID            string         `json:"id"`
	Endpoint      netip.AddrPort `json:"endpoint"`
	LastHandshake time.Time      `json:"lastHandshake"` // zero if never
	Received      uint64         `json:"received"`      // bytes
	Sent          uint64         `json:"sent"`          // bytes
	// Paths are the paths to the peer, the one in use first.
	Paths []paths.PathStatus `json:"paths,omitempty"`
	// MTU is what fits through the path, inside the tunnel, bytes; the tunnel's until it is measured.
	MTU int `json:"mtu,omitempty"`
	// Problem is nil if the peer is served as the Config wants it.
	Problem *Problem `json:"problem,omitempty"`
}

// Problem is why one peer is not served, with a cure. Other peers are not affected.
type Problem struct {
	Text string `json:"text"`
	Cure string `json:"cure"`
	// Partly: the peer is served, with restrictions.
	Partly bool `json:"partly,omitempty"`
}

// HelperVersion is that of the protocol and the behaviour of the data plane's process. A process with another version
// is replaced, which costs a second of traffic: raise it when the process itself has changed.
const HelperVersion = "19"
