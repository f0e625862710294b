package paths

import (
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"net/netip"
	"sync"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

// Packets of this package on the WireGuard socket begin with this byte. WireGuard's own messages begin with 1 to 4 and
// three zeros; it ignores all others.
const magic = 'R'

// The second byte.
const (
	kindControl = 1 // sealed between the two ends
	kindRelay   = 2 // to be relayed, or relayed
)

// Key is a Curve25519 key of WireGuard, private or public.
type Key [32]byte

// short identifies a peer on the wire: a hash of its WireGuard key. It selects the key for the check and proves
// nothing.
type short [8]byte

func shortOf(public Key) short {
	sum := sha256.Sum256(append([]byte("rivulet paths peer "), public[:]...))
	return short(sum[:8])
}

func (s short) tag() tag { return tag(s[:4]) }

// tag is the form of short in a relay frame, which has little room.
type tag [4]byte

// Tag is the short form of a key in relay frames: no two keys in a room of a hub have the same one.
func Tag(public Key) [4]byte { return shortOf(public).tag() }

// secret is shared by two ends only: derived from their WireGuard keys.
type secret struct {
	aead  cipher.AEAD
	proof []byte // for streams
	macs  sync.Pool
}

func newSecret(private, public Key) (*secret, error) {
	priv, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		return nil, err
	}
	pub, err := ecdh.X25519().NewPublicKey(public[:])
	if err != nil {
		return nil, err
	}
	shared, err := priv.ECDH(pub)
	if err != nil {
		return nil, err
	}
	derive := func(use string) []byte {
		h := hmac.New(sha256.New, shared)
		h.Write([]byte("rivulet paths v2 " + use)) // what another version seals is refused
		return h.Sum(nil)
	}
	s := &secret{proof: derive("stream")}
	if s.aead, err = chacha20poly1305.NewX(derive("control")); err != nil {
		return nil, err
	}
	macKey := derive("relay")
	s.macs.New = func() any {
		h, _ := blake2s.New128(macKey) // fails only for a key that is too long
		return h
	}
	return s, nil
}

const controlHead = 12 // magic, kind, two zeros, the sender's short

var errSealed = errors.New("paths: not from this peer")

// stamp tells a sender's messages apart, as the beginning of the nonce. The receiver takes a count of an epoch once, and
// an epoch after the sender has answered in it.
type stamp struct {
	epoch uint64 // random: one run of one peer
	count uint64 // rises by one
}

func (s *secret) seal(from short, at stamp, body []byte) []byte {
	out := make([]byte, controlHead+chacha20poly1305.NonceSizeX, controlHead+chacha20poly1305.NonceSizeX+len(body)+chacha20poly1305.Overhead)
	out[0], out[1] = magic, kindControl
	copy(out[4:], from[:])
	nonce := out[controlHead:]
	binary.BigEndian.PutUint64(nonce, at.epoch)
	binary.BigEndian.PutUint64(nonce[8:], at.count)
	rand.Read(nonce[16:]) // never fails; both ends seal with one key
	return s.aead.Seal(out, nonce, body, out[:controlHead])
}

func (s *secret) open(packet []byte) (at stamp, body []byte, err error) {
	const head = controlHead + chacha20poly1305.NonceSizeX
	if len(packet) < head {
		return at, nil, errSealed
	}
	nonce := packet[controlHead:head]
	at = stamp{epoch: binary.BigEndian.Uint64(nonce), count: binary.BigEndian.Uint64(nonce[8:])}
	body, err = s.aead.Open(nil, nonce, packet[head:], packet[:controlHead])
	return at, body, err
}

// sender is the claimed sender of a control packet.
func sender(packet []byte) (short, bool) {
	if len(packet) < controlHead || packet[0] != magic || packet[1] != kindControl {
		return short{}, false
	}
	return short(packet[4:controlHead]), true
}

// relayHead is the length of the header of a relayed packet, bytes. With it a packet of a tunnel whose MTU is the
// link's less 80 still fits into the link, over IPv4.
//
//	'R' 2 0 0 | source tag 4 | destination tag 4 | MAC 8 | packet
const relayHead = 20

// frame writes the header of a relayed packet. The MAC is by the secret of the two ends of this hop.
func (s *secret) frame(head []byte, from, to tag, packet []byte) {
	head[0], head[1], head[2], head[3] = magic, kindRelay, 0, 0
	copy(head[4:], from[:])
	copy(head[8:], to[:])
	s.mac(head[12:relayHead], head[:12], packet)
}

// framed reports whether the other owner of this secret made the frame.
func (s *secret) framed(frame []byte) bool {
	var want [8]byte
	s.mac(want[:], frame[:12], frame[relayHead:])
	return hmac.Equal(want[:], frame[12:relayHead])
}

// mac covers addresses, length and the beginning of the packet, which differs in each. WireGuard authenticates the
// rest.
func (s *secret) mac(out, head, packet []byte) {
	h := s.macs.Get().(hash.Hash)
	defer s.macs.Put(h)
	h.Reset()
	var scratch [64]byte
	buf := append(scratch[:0], head...)
	buf = binary.BigEndian.AppendUint16(buf, uint16(len(packet)))
	buf = append(buf, packet[:min(len(packet), 32)]...)
	h.Write(buf)
	var sum [16]byte
	copy(out, h.Sum(sum[:0])[:8])
}

func relayed(frame []byte) (from, to tag, ok bool) {
	if len(frame) <= relayHead || frame[0] != magic || frame[1] != kindRelay {
		return tag{}, tag{}, false
	}
	return tag(frame[4:8]), tag(frame[8:12]), true
}

// The bodies of control packets.
const (
	bodyPing       = 1
	bodyPong       = 2
	bodyCandidates = 3
)

const flagMoved = 1 // forget the previous address

// probeBody is the length of pings and pongs alike, bytes: an answer is never longer than what it answers, so nobody can
// have this device send more to an address than was sent in its name.
const probeBody = 1 + 8 + 8 + 19

// maxCandidates bounds a list of advertised addresses.
const maxCandidates = 12

type message struct {
	kind     byte
	id       uint64         // ping, pong
	flags    byte           // ping
	request  uint64         // pong: it is a ping with this number as well; 0 if it is none
	seen     netip.AddrPort // pong: the source of the ping; invalid if it was relayed
	udp, tcp []netip.AddrPort
}

var errMessage = errors.New("paths: malformed message")

func (m message) encode() []byte {
	out := []byte{m.kind}
	switch m.kind {
	case bodyPing:
		out = append(binary.BigEndian.AppendUint64(out, m.id), m.flags)
		out = append(out, make([]byte, probeBody-len(out))...)
	case bodyPong:
		out = binary.BigEndian.AppendUint64(out, m.id)
		out = appendAddr(binary.BigEndian.AppendUint64(out, m.request), m.seen)
		out = append(out, make([]byte, probeBody-len(out))...)
	case bodyCandidates:
		out = appendAddrs(appendAddrs(out, m.udp), m.tcp)
	}
	return out
}

// decode accepts bodies that are longer than expected, so that later versions may add fields.
func decode(b []byte) (m message, err error) {
	if len(b) == 0 || (b[0] == bodyPing || b[0] == bodyPong) && len(b) < probeBody {
		return m, errMessage
	}
	m.kind, b = b[0], b[1:]
	switch m.kind {
	case bodyPing:
		m.id, m.flags = binary.BigEndian.Uint64(b), b[8]
	case bodyPong:
		m.id, m.request = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		m.seen, _, err = takeAddr(b[16:])
	case bodyCandidates:
		if m.udp, b, err = takeAddrs(b); err == nil {
			m.tcp, _, err = takeAddrs(b)
		}
	}
	return m, err
}

func appendAddr(out []byte, a netip.AddrPort) []byte {
	ip := a.Addr().Unmap().WithZone("").AsSlice()
	out = append(append(out, byte(len(ip))), ip...)
	return binary.BigEndian.AppendUint16(out, a.Port())
}

func takeAddr(b []byte) (netip.AddrPort, []byte, error) {
	if len(b) < 1 || (b[0] != 0 && b[0] != 4 && b[0] != 16) || len(b) < 3+int(b[0]) {
		return netip.AddrPort{}, nil, errMessage
	}
	n := int(b[0])
	ip, _ := netip.AddrFromSlice(b[1 : 1+n])
	return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[1+n:])), b[3+n:], nil
}

func appendAddrs(out []byte, as []netip.AddrPort) []byte {
	as = as[:min(len(as), maxCandidates)]
	out = append(out, byte(len(as)))
	for _, a := range as {
		out = appendAddr(out, a)
	}
	return out
}

func takeAddrs(b []byte) (as []netip.AddrPort, rest []byte, err error) {
	if len(b) < 1 || b[0] > maxCandidates {
		return nil, nil, errMessage
	}
	n, b := int(b[0]), b[1:]
	for range n {
		var a netip.AddrPort
		if a, b, err = takeAddr(b); err != nil {
			return nil, nil, err
		}
		as = append(as, a)
	}
	return as, b, nil
}
