package attacker

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"

	"golang.zx2c4.com/wireguard/conn"

	"rivulet/test/harness/testns"
)

// bind is WireGuard's socket, in the attacker's namespace.
type bind struct {
	room testns.Room
	udp  *net.UDPConn
}

func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	if b.udp != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	if err := b.room.Try(func() (err error) {
		b.udp, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		return err
	}); err != nil {
		return nil, 0, err
	}
	udp := b.udp
	receive := func(packets [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		n, from, err := udp.ReadFromUDPAddrPort(packets[0])
		if err != nil {
			return 0, err
		}
		sizes[0], eps[0] = n, &conn.StdNetEndpoint{AddrPort: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
		return 1, nil
	}
	return []conn.ReceiveFunc{receive}, uint16(udp.LocalAddr().(*net.UDPAddr).Port), nil
}

func (b *bind) Close() error {
	if b.udp == nil {
		return nil
	}
	err := b.udp.Close()
	b.udp = nil
	return err
}

func (b *bind) SetMark(uint32) error { return nil }
func (b *bind) BatchSize() int       { return 1 }

func (b *bind) Send(packets [][]byte, ep conn.Endpoint) error {
	to, ok := ep.(*conn.StdNetEndpoint)
	if !ok {
		return errors.New("attacker: another endpoint")
	}
	for _, p := range packets {
		if _, err := b.udp.WriteToUDPAddrPort(p, to.AddrPort); err != nil {
			return err
		}
	}
	return nil
}

func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	return &conn.StdNetEndpoint{AddrPort: a}, err
}

func hexKey(text string) (string, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	return hex.EncodeToString(raw), err
}

func pkcs8(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}
