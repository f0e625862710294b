// Package peer has the common types for other clusters: their identity, the stored record, and the link to a reachable
// one. It is a leaf: it reads nothing, writes nothing and imports nothing of Rivulet but wgkey.
package peer

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"rivulet/fabric/wgkey"
)

// ID identifies a cluster permanently: the hash of its Ed25519 public key. Names, addresses and serial numbers never
// identify a cluster.
type ID string

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

const idLen = 32 // 160 bits in base32

// IDFromKey returns the ID of the cluster that owns the public key.
func IDFromKey(pub ed25519.PublicKey) ID {
	sum := sha256.Sum256(pub)
	return ID(idEncoding.EncodeToString(sum[:20]))
}

// Hosted is the identity, at other clusters, of a virtual cluster of host. It follows from the host's own identity, so no
// other cluster can use it.
func Hosted(host ID, seed string) ID {
	sum := sha256.Sum256([]byte("rivulet virtual cluster\x00" + string(host) + "\x00" + seed))
	return ID(idEncoding.EncodeToString(sum[:20]))
}

// IDFromCertificate returns the ID of the cluster that owns the certificate's
// key. It fails if the key is not Ed25519.
func IDFromCertificate(c *x509.Certificate) (ID, error) {
	pub, ok := c.PublicKey.(ed25519.PublicKey)
	if !ok {
		return "", fmt.Errorf("peer: certificate of %q has a %T, want an Ed25519 key", c.Subject.CommonName, c.PublicKey)
	}
	return IDFromKey(pub), nil
}

func (id ID) Valid() bool {
	if len(id) != idLen {
		return false
	}
	return strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// Short returns the first eight characters: for display, never for decisions.
func (id ID) Short() string {
	if len(id) < 8 {
		return string(id)
	}
	return string(id[:8])
}

// Record is the stored state of a peer, available without Kubernetes. The fabric alone writes it.
type Record struct {
	ID    ID     `json:"id"`
	Name  string `json:"name"`
	Trust Trust  `json:"trust"`
	// Certificate is the peer's self-signed certificate, DER. Its key is the pin.
	Certificate []byte `json:"certificate"`
	// WireGuardKey is the peer's public key. It is zero if the stored one is not usable: see Decode.
	WireGuardKey wgkey.Public `json:"wireguardKey"`
	// PeerCIDR is the peer's pod CIDR as the peer itself uses it.
	PeerCIDR netip.Prefix `json:"theirs"`
	// PeerMappedCIDR is the prefix under which this cluster sees the peer's pods, chosen by this cluster.
	PeerMappedCIDR netip.Prefix `json:"remote"`
	// LocalMappedCIDR is the prefix under which the peer sees this cluster's pods, chosen by the peer.
	LocalMappedCIDR netip.Prefix `json:"as"`
	// TunnelAddress is the peer's own address inside the tunnel, one of PeerCIDR.
	TunnelAddress netip.Addr `json:"tunnelAddress"`
	// Control and Tunnel are the peer's last known addresses on the underlay.
	Control netip.AddrPort `json:"control"`
	Tunnel  netip.AddrPort `json:"tunnel"`
	// Version is the peer's Rivulet version, KubeVersion that of its API server.
	Version     string `json:"version,omitempty"`
	KubeVersion string `json:"kubeVersion,omitempty"`
	// Roles are the directions that this cluster has switched off, TheirRoles those of the peer.
	Roles      Roles `json:"roles,omitzero"`
	TheirRoles Roles `json:"theirRoles,omitzero"`
	// Price and Labels are this cluster's settings of the peer: see Settings.
	Price  int               `json:"price,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// NextWireGuardKey is the key that the peer will change to; see docs/design/peering.md.
	NextWireGuardKey wgkey.Public `json:"nextWireGuardKey,omitzero"`
	// KeyProved and NextKeyProved: the peer has proved possession of the keys.
	KeyProved     bool `json:"keyProved,omitempty"`
	NextKeyProved bool `json:"nextKeyProved,omitempty"`
	// Heard is the sequence of the peer's last message that changed anything. Skip is added to this cluster's
	// sequences, so that they are higher than those that the peer has received.
	Heard uint64 `json:"heard,omitempty"`
	Skip  uint64 `json:"skip,omitempty"`
	// Node is the name of the device's node if it is one of this cluster's; Behind are the prefixes of this cluster that
	// are reached through it.
	Node   string         `json:"node,omitempty"`
	Behind []netip.Prefix `json:"behind,omitempty"`
	// Unconfirmed: the cluster has called, and has not repeated this cluster's choice since. It may not have taken this
	// cluster as a peer.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// Standby: the device may become this cluster's server, and has its keys.
	Standby bool `json:"standby,omitempty"`
}

// Decode reads a stored record. An unusable key is left out: the peer stays a peer, without a tunnel until it sends a
// usable key.
func Decode(blob []byte) (Record, error) {
	type plain Record
	loose := struct {
		*plain
		WireGuardKey     string `json:"wireguardKey"`
		NextWireGuardKey string `json:"nextWireGuardKey"`
	}{plain: &plain{}}
	if err := json.Unmarshal(blob, &loose); err != nil {
		return Record{}, fmt.Errorf("peer: %w", err)
	}
	r := Record(*loose.plain)
	r.WireGuardKey, _ = wgkey.Parse(loose.WireGuardKey)
	r.NextWireGuardKey, _ = wgkey.Parse(loose.NextWireGuardKey)
	return r, nil
}

// Complete reports whether both sides have sent their prefix, which is all that a tunnel needs.
func (r Record) Complete() bool {
	return r.ID.Valid() && !r.WireGuardKey.IsZero() && r.PeerCIDR.IsValid() && r.PeerMappedCIDR.IsValid() && r.LocalMappedCIDR.IsValid() && r.TunnelAddress.IsValid()
}

// ByTrust orders records by the time of trust, the oldest first.
func ByTrust(a, b Record) int {
	return cmp.Or(a.Trust.At.Compare(b.Trust.At), cmp.Compare(a.ID, b.ID))
}

// Address is the peer's control address inside the tunnel as this cluster sees it, false while the record is
// incomplete.
func (r Record) Address() (netip.AddrPort, bool) {
	if !r.Complete() {
		return netip.AddrPort{}, false
	}
	addr, ok := Translate(r.TunnelAddress, r.PeerCIDR, r.PeerMappedCIDR)
	return netip.AddrPortFrom(addr, r.Control.Port()), ok
}

// Store stores records durably: when Put returns nil the record survives a power cut.
type Store interface {
	PutPeer(Record) error
	DeletePeer(ID) error
	Peers() ([]Record, error)
}

type State string

// The states, in the order in which a peer usually passes through them.
const (
	Discovered State = "Discovered" // seen, nothing exchanged yet
	Waiting    State = "Waiting"    // an operator has to approve, here or there; see Reason
	Denied     State = "Denied"     // an operator here has denied it, or has ended the peering
	Refused    State = "Refused"    // the exchange failed for a reason that waiting does not cure; see Reason
	Connecting State = "Connecting" // exchanged; no answer through the tunnel yet
	Connected  State = "Connected"  // the peer answers through the tunnel
	Lost       State = "Lost"       // it answered before and does not now
)

// Apart reports whether the state is that of a cluster that is no peer.
func (s State) Apart() bool {
	return s == Discovered || s == Refused || s == Waiting || s == Denied
}

// View is a cluster as status shows it.
type View struct {
	Record
	State    State         `json:"state"`
	Reason   string        `json:"reason,omitempty"` // one line, with a cure, when State is not Connected
	Notice   string        `json:"notice,omitempty"` // what the operator still has to do
	RTT      time.Duration `json:"rtt,omitempty"`    // round trip through the tunnel, nanoseconds
	Since    time.Time     `json:"since"`            // when State was entered
	LastSeen time.Time     `json:"lastSeen"`         // last answer through the tunnel
	// Found names the sources that see it now, Addrs are the control addresses to try.
	Found []string         `json:"found,omitempty"`
	Addrs []netip.AddrPort `json:"addrs,omitempty"`
	// Path is the path in use: "direct 192.168.1.5:7442", "relay via NAME", "stream 192.168.1.5:7442"; empty while none
	// is known. Paths are all.
	Path  string `json:"path,omitempty"`
	Paths []Path `json:"paths,omitempty"`
}

type Path struct {
	Path  string        `json:"path"`
	RTT   time.Duration `json:"rtt,omitempty"` // between the two tunnel processes, nanoseconds
	Alive bool          `json:"alive"`         // it answers
	Used  bool          `json:"used"`
}

// Link is what other packages need to use a peer. Addresses and keys stay the same while State changes; a new Link
// replaces the old one when they change.
type Link struct {
	ID   ID
	Name string
	// Addr is the peer's control address inside the tunnel.
	Addr netip.AddrPort
	// PeerCIDR, PeerMappedCIDR and LocalMappedCIDR are those of Record.
	PeerCIDR, PeerMappedCIDR, LocalMappedCIDR netip.Prefix
	State                                     State
	RTT                                       time.Duration
	// Nearness is the class of the round trip, 0 to MaxNearness. It follows a change that lasts, and stays while the peer
	// does not answer.
	Nearness int
	// Price and Labels are those of Record.
	Price  int
	Labels map[string]string
	// Trust is how the peer came to be trusted: TrustLAN and the like.
	Trust string
	// NoBorrow and NoLend are the directions that either side has switched off.
	NoBorrow, NoLend bool
}

// Unlinked is a peer without a tunnel, because its record is not complete. Only the fields of Link that do not depend on
// one are set.
type Unlinked struct {
	Link
	Why string
}

// Translate maps addr from one prefix to another of the same size; host bits stay. It returns false if addr is not in
// from or the sizes differ.
func Translate(addr netip.Addr, from, to netip.Prefix) (netip.Addr, bool) {
	if !from.Contains(addr) || from.Bits() != to.Bits() || !to.Addr().Is4() || !addr.Is4() {
		return netip.Addr{}, false
	}
	a, t := addr.As4(), to.Masked().Addr().As4()
	for bit := to.Bits(); bit < 32; bit++ {
		mask := byte(0x80) >> (bit % 8)
		t[bit/8] |= a[bit/8] & mask
	}
	return netip.AddrFrom4(t), true
}
