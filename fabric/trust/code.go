package trust

import (
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strings"

	"rivulet/fabric/peer"
)

// URLPrefix begins an invite in the form of a URL, for a QR code or a link.
const URLPrefix = "rivulet://invite/"

// maxAddrs bounds how many addresses an invite carries.
const maxAddrs = 6

// Code is the content of an invite: its cluster, the secret, and the addresses.
//
//	version 1 | ID 20 | secret 16 | n | n × (4 or 16, address, port 2) | CRC-32 4     in base32
type Code struct {
	ID     peer.ID
	Secret []byte
	Addrs  []netip.AddrPort
}

const codeVersion = 1

var (
	codeText = base32.StdEncoding.WithPadding(base32.NoPadding)
	idText   = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

// String writes the code in capital letters and digits, which are compact in a QR code. Addresses beyond the bound are
// left out.
func (c Code) String() string {
	id, err := idText.DecodeString(string(c.ID))
	if err != nil || !c.ID.Valid() || len(c.Secret) != SecretLen {
		return ""
	}
	addrs := c.Addrs[:min(len(c.Addrs), maxAddrs)]
	raw := append(append([]byte{codeVersion}, id...), c.Secret...)
	raw = append(raw, byte(len(addrs)))
	for _, a := range addrs {
		ip := a.Addr().Unmap().WithZone("").AsSlice()
		raw = binary.BigEndian.AppendUint16(append(append(raw, byte(len(ip))), ip...), a.Port())
	}
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return codeText.EncodeToString(raw)
}

// URL is the code as a link.
func (c Code) URL() string { return URLPrefix + c.String() }

// ParseCode reads what String or URL wrote, in upper or lower case and with any spaces and dashes.
func ParseCode(text string) (Code, error) {
	text = strings.TrimSpace(text)
	if len(text) > 1024 {
		return Code{}, errors.New("this is no invite, it is too long; copy the code that rivulet invite has printed")
	}
	if n := len(URLPrefix); len(text) >= n && strings.EqualFold(text[:n], URLPrefix) {
		text = text[n:]
	}
	text = strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' || r == '\n' || r == '\r' || r == '\t' {
			return -1
		}
		return r
	}, strings.ToUpper(text))
	raw, err := codeText.DecodeString(text)
	if err != nil || len(raw) < 1+20+SecretLen+1+4 {
		return Code{}, errors.New("this is no invite, or not all of one; copy the code that rivulet invite has printed")
	}
	body, sum := raw[:len(raw)-4], binary.BigEndian.Uint32(raw[len(raw)-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return Code{}, errors.New("a letter of the invite is wrong or missing; copy it again")
	}
	if body[0] != codeVersion {
		return Code{}, fmt.Errorf("the invite is of a newer kind (%d); upgrade rivulet on this side", body[0])
	}
	c := Code{ID: peer.ID(idText.EncodeToString(body[1:21])), Secret: body[21:37]}
	n, rest := int(body[37]), body[38:]
	for range n {
		if len(rest) < 1 || len(rest) < 1+int(rest[0])+2 {
			return Code{}, errors.New("the invite is cut off; copy it again")
		}
		size := int(rest[0])
		ip, ok := netip.AddrFromSlice(rest[1 : 1+size])
		if !ok {
			return Code{}, errors.New("the invite has a malformed address; make a new one")
		}
		c.Addrs = append(c.Addrs, netip.AddrPortFrom(ip, binary.BigEndian.Uint16(rest[1+size:])))
		rest = rest[1+size+2:]
	}
	if len(rest) != 0 || n > maxAddrs {
		return Code{}, errors.New("the invite has more than belongs to one; make a new one")
	}
	return c, nil
}
