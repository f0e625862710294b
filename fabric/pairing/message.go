package pairing

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// Version is the newest protocol version of this code. The next one has to support this one as well: clusters are not
// upgraded at the same time.
const Version = 2

// Versions are the supported protocol versions, oldest first.
var Versions = []int{Version}

// Message is both halves of the exchange: the body of POST /v1/peering and its answer. It is a snapshot of its sender's
// state; a repetition changes nothing.
type Message struct {
	Versions     []int        `json:"versions"`
	ID           peer.ID      `json:"id"`
	Name         string       `json:"name"`
	Version      string       `json:"version"`
	KubeVersion  string       `json:"kubeVersion,omitempty"`
	WireGuardKey wgkey.Public `json:"wireguardKey"`
	// TunnelPort is UDP, ControlPort TCP, both at the message's source address.
	TunnelPort    uint16       `json:"tunnelPort"`
	ControlPort   uint16       `json:"controlPort"`
	TunnelAddress netip.Addr   `json:"tunnelAddress"`
	PodCIDR       netip.Prefix `json:"podCIDR"`
	ServiceCIDR   netip.Prefix `json:"serviceCIDR"`
	// SeeYouAs is the prefix under which the sender sees the receiver's pods. It is empty until the sender has the
	// receiver's pod CIDR.
	SeeYouAs netip.Prefix `json:"seeYouAs"`
	// SeenAs repeats the receiver's last SeeYouAs, which acknowledges it.
	SeenAs netip.Prefix `json:"seenAs"`

	// Sequence grows with every message to the receiver, over restarts too: the higher one of two is newer. Heard is
	// the highest that the sender has received from the receiver.
	Sequence uint64 `json:"sequence,omitempty"`
	Heard    uint64 `json:"heard,omitempty"`
	// Roles are the directions that the sender has switched off.
	Roles peer.Roles `json:"roles,omitzero"`
	// NextWireGuardKey is the sender's next key, zero if none is planned.
	NextWireGuardKey wgkey.Public `json:"nextWireGuardKey,omitzero"`
	// Demands is the proof that the sender demands of an untrusted receiver: "group", or empty.
	Demands string `json:"demands,omitempty"`
	// Proof shows possession of the group's secret; see Proof.
	Proof []byte `json:"proof,omitempty"`
	// Invite is the secret of an invite of the receiver; with Join, of a token to become a node of its cluster.
	Invite []byte `json:"invite,omitempty"`
	Join   bool   `json:"join,omitempty"`

	// Proves: the sender proves possession of its WireGuard keys to a receiver whose key it has. KeyProof and
	// NextKeyProof are these proofs.
	Proves       bool   `json:"proves,omitempty"`
	KeyProof     []byte `json:"keyProof,omitempty"`
	NextKeyProof []byte `json:"nextKeyProof,omitempty"`
}

// maxSequence leaves room above: no sender can exhaust the sequences.
const maxSequence = 1 << 62

// Decode reads a message of a stranger. Unknown fields are ignored; without a common protocol version only the version
// is read.
func Decode(body []byte) (Message, error) {
	if len(body) > rpc.MaxBody {
		return Message{}, refuse("bad-message", "the peering message is longer than %d bytes", rpc.MaxBody)
	}
	var head struct {
		Versions []int `json:"versions"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return Message{}, refuse("bad-message", "the peering message is not understood: %s", plain(err))
	}
	if !slices.ContainsFunc(head.Versions, func(v int) bool { return slices.Contains(Versions, v) }) {
		return Message{}, versionError(head.Versions)
	}
	var m Message
	if err := json.Unmarshal(body, &m); err != nil {
		return Message{}, refuse("bad-message", "the peering message is not understood: %s", plain(err))
	}
	m.Versions = head.Versions
	return m, m.check()
}

// plain describes a decoding error without terms of Go.
func plain(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("%s is a %s", cmp.Or(wrong.Field, "all of it"), wrong.Value)
	}
	return err.Error()
}

func versionError(theirs []int) error {
	newer := len(theirs) > 0 && slices.Max(theirs) > Version
	e := &rpc.Error{Code: "version", Message: fmt.Sprintf("no common peering protocol: one side speaks %v, the other %v", theirs, Versions), Cure: "upgrade rivulet on both sides to the same release"}
	if len(theirs) > 8 {
		e.Message = "no common peering protocol: the other side names too many versions"
	} else if newer {
		e.Cure = fmt.Sprintf("upgrade rivulet on the side that speaks %v", Versions)
	}
	return e
}

var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	digitsForm  = regexp.MustCompile(`^[0-9.]*\.[0-9]+$`)
	versionForm = regexp.MustCompile(`^[A-Za-z0-9.+_-]{0,64}$`)
)

// ValidName reports whether the name of a stranger may be shown and used. A name that looks like an address or an ID would
// be taken for that of another cluster.
func ValidName(s string) bool {
	return nameForm.MatchString(s) && !digitsForm.MatchString(s) && !peer.ID(strings.ToLower(s)).Valid()
}

// check validates the message by itself, independent of its sender.
func (m Message) check() error {
	switch {
	case !m.ID.Valid():
		return refuse("bad-message", "the peering message has no valid ID")
	case !ValidName(m.Name):
		return refuse("bad-message", "the name %.70q is not usable: letters, digits, dots and dashes, at most 63, and no address or ID", m.Name)
	case !versionForm.MatchString(m.Version) || !versionForm.MatchString(m.KubeVersion):
		return refuse("bad-message", "the peering message has a malformed version")
	case m.WireGuardKey.IsZero():
		return refuse("bad-message", "the peering message has no WireGuard key")
	case m.NextWireGuardKey == m.WireGuardKey:
		return refuse("bad-message", "the next WireGuard key is the present one")
	case m.Sequence == 0, m.Sequence >= maxSequence, m.Heard >= maxSequence:
		return refuse("bad-message", "the peering message has no usable sequence")
	case len(m.Versions) > 32 || len(m.Demands) > 32 || len(m.Proof) > 64 || len(m.Invite) > 64 || len(m.KeyProof) > 64 || len(m.NextKeyProof) > 64:
		return refuse("bad-message", "a part of the peering message is too long")
	case m.TunnelPort == 0 || m.ControlPort == 0:
		return refuse("bad-message", "the peering message lacks a port")
	case !usable(m.PodCIDR):
		return refuse("bad-message", "the pod CIDR %q is not an IPv4 prefix of 8 to 30 bits", m.PodCIDR)
	case !m.PodCIDR.Contains(m.TunnelAddress):
		return refuse("bad-message", "the tunnel address %q is not in the pod CIDR %s", m.TunnelAddress, m.PodCIDR)
	case m.ServiceCIDR.IsValid() && m.ServiceCIDR != m.ServiceCIDR.Masked():
		return refuse("bad-message", "the service CIDR %q has host bits", m.ServiceCIDR)
	case m.SeeYouAs.IsValid() && !usable(m.SeeYouAs), m.SeenAs.IsValid() && !usable(m.SeenAs):
		return refuse("bad-message", "a prefix of the peering message is not an IPv4 prefix of 8 to 30 bits")
	}
	return nil
}

func usable(p netip.Prefix) bool {
	return p.IsValid() && p.Addr().Is4() && p.Bits() >= 8 && p.Bits() <= 30 && p == p.Masked() && !p.Addr().IsMulticast() && !p.Addr().IsUnspecified()
}

func refuse(code, format string, args ...any) *rpc.Error {
	return &rpc.Error{Code: code, Message: peer.Text(fmt.Sprintf(format, args...)), Cure: cures[code]}
}

var cures = map[string]string{
	"bad-message": "run the same version of rivulet on both sides",
	"identity":    "something between the two clusters answers in its place: check proxies on the LAN",
	"clone":       "a disk was copied with its identity; stop rivulet on the copy and move its state.db and its copy away (mkdir /var/lib/rivulet/state.db.copied; mv /var/lib/rivulet/state.db /var/lib/rivulet/state.db.copy /var/lib/rivulet/state.db.copied); started again it is a cluster of its own",
	"same-key":    "a disk was copied in part; stop rivulet on the copy and move its state.db and its copy away (mkdir /var/lib/rivulet/state.db.copied; mv /var/lib/rivulet/state.db /var/lib/rivulet/state.db.copy /var/lib/rivulet/state.db.copied); started again it is a cluster of its own",
	"not-on-link": "put both clusters on the same LAN",
	"closed":      "see the configuration (rivulet config show) of the cluster that says so",
	"denied":      "to have it back, the cluster that says so has to name it: rivulet peer NAME",
	"unpeered":    "to have it back, the cluster that says so has to name it: rivulet peer NAME",
	"name-taken":  "if the device was set up anew: first the old one: rivulet unpeer OLD-ID --force; then: rivulet approve ID; if it was not, somebody has taken its name: rivulet deny ID",
	"no-proof":    "write the same trust (mode: group, and the secret) into the configuration of both",
	"wrong-proof": "write the same secret into the configuration of both (trust.secret or trust.secretFile)",
	"pending":     "run there: rivulet approve NAME",
	"invite":      "make a new one there: rivulet invite",
	"token":       "make a new one there: rivulet token create",
	"leaving":     "wait until it is back",
	"prefix":      "give the two clusters pod CIDRs of the same size",
	"no-prefix":   "free a private prefix or remove peers that are gone",
	"full":        "say yes to it there: rivulet approve NAME; or forget those that are not needed: rivulet unpeer --lan",
	"store":       "look at the disk of /var/lib/rivulet (space, read-only mount)",
	"busy":        "",
}
