// Package broker is the rendezvous of clusters of a group that share no LAN. A broker is a program on a host that all
// of them reach. It is no peer: it has no secret, no record and no address in the tunnel.
//
//	a ── POST /v1/broker/room ──▶ broker ◀── POST /v1/broker/room ── b     who is in the room, and calls
//	a ── POST /v1/carry/<b> ────▶ broker ◀── POST /v1/carried/<call> ── b
//	a ◀═════ TLS of a and b, POST /v1/peering ═════▶ b                     spliced, as through a common peer
//	a ◀── relay frames, UDP or streams ──▶ broker ◀── relay frames ──▶ b   the last way: package paths
//
// A Server reads what members send, and writes nothing: a room is forgotten when its members have disconnected. A Client
// reads the broker's lines, which are hints as all discovery is, and registers again, with back-off, when the connection
// ends. A broker that is not reached is a problem in `rivulet status`, and peers that do not need it are not affected.
package broker

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/wgkey"
)

// DefaultPort is the port of a broker, TCP and UDP.
const DefaultPort = 7442

// Address is where a broker is, and the ID that pins its key.
type Address struct {
	ID   peer.ID
	Host string
	Port uint16
}

// ParseAddress reads ID@HOST or ID@HOST:PORT.
func ParseAddress(s string) (Address, error) {
	id, at, _ := strings.Cut(s, "@")
	a := Address{ID: peer.ID(id), Host: at, Port: DefaultPort}
	if host, port, err := net.SplitHostPort(at); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Address{}, fmt.Errorf("%q is no port", port)
		}
		a.Host, a.Port = host, uint16(n)
	}
	ip, err := netip.ParseAddr(strings.Trim(a.Host, "[]"))
	switch {
	case !a.ID.Valid():
		return Address{}, fmt.Errorf("%q does not begin with the ID of a broker and @", s)
	case err == nil:
		a.Host = ip.String()
	case a.Host == "" || strings.ContainsAny(a.Host, "@:/[] \t\n"):
		return Address{}, fmt.Errorf("%q has no host behind the @", s)
	}
	return a, nil
}

func (a Address) host() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))) }

func (a Address) String() string { return string(a.ID) + "@" + a.host() }

// The messages.
type (
	// hello is the answer of GET /v1/broker.
	hello struct {
		WireGuardKey string `json:"wireGuardKey"` // for the keys of relay frames
	}
	// registration is the request of POST /v1/broker/room.
	registration struct {
		Room         string           `json:"room"`
		WireGuardKey string           `json:"wireGuardKey"`
		Proof        []byte           `json:"proof"` // of the WireGuard key: pairing.Possession
		Addrs        []netip.AddrPort `json:"addrs,omitempty"`
	}
	// member is one of a room.
	member struct {
		ID    peer.ID          `json:"id"`
		Addrs []netip.AddrPort `json:"addrs,omitempty"`
	}
	// line is one of the answer: the members, without the receiver, or a call of one of them.
	line struct {
		Members []member `json:"members"`
		Call    string   `json:"call,omitempty"`
	}
)

const (
	helloPath    = "/v1/broker"
	roomPath     = "/v1/broker/room"
	relayPath    = "/v1/carry/"
	callPath     = "/v1/carried/"
	roomLen      = 64 // hexadecimal digits
	maxRoom      = 256
	maxMembers   = 1024 // of all rooms
	perSource    = 128  // members from one address: those behind one NAT
	maxAddrs     = 4    // of a member
	maxRelayed   = 64   // exchanges at once
	heartbeat    = 15 * time.Second
	answerWithin = 5 * time.Second // a called member
	betweenLists = time.Second     // lists for one member
)

const notAdmitted = "not-admitted"

// Fingerprint names a room to the owner of a broker without giving it away.
func Fingerprint(room string) string {
	sum := sha256.Sum256([]byte("rivulet broker fingerprint v1 " + room))
	return hex.EncodeToString(sum[:8])
}

// publicKey is the key of a text from elsewhere; zero if it is none.
func publicKey(text string) wgkey.Public {
	key, err := wgkey.Parse(text)
	if err != nil {
		return wgkey.Public{}
	}
	return key
}
