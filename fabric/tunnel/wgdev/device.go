// Package wgdev is one WireGuard device with what wireguard-go lacks between its sockets, its peers and its TUN.
// Packets pass these layers, from the inside out:
//
//	gso        packets larger than the MTU: split, or whole where the path takes them
//	TUN        translation, marks of probes, drop of packets for unreachable peers
//	flow       bounds how many packets are inside wireguard-go, in each direction
//	wireguard-go
//	paced      counts into flow; returns idle buffers to the system (rest)
//	whole      sends marked packets in one piece (DF)
//	arbiter    decides between handshakes that both ends begin at once, by path
//	paths      chooses the path: an address, a stream, a relay
//	arbiter    the same by address; simultaneous repairs those that cross all the same
//	bind       UDP sockets that let routers fragment
//
// It reads the packets and its last list of peers, and writes only its counters. It stores nothing: after a restart
// peers agree on new sessions. An error of one packet drops that packet; an error of the device is returned to the
// caller.
package wgdev

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/translate"
	"rivulet/fabric/tunnel/gso"
	"rivulet/fabric/tunnel/paths"
)

// Key is a public key of WireGuard.
type Key = paths.Key

// Peer is the device's input for a peer beside WireGuard's own configuration.
type Peer struct {
	Key Key
	// CIDR is the prefix of its pods as this cluster sees them, IPv4; Behind are further prefixes that lead to it.
	CIDR   netip.Prefix
	Behind []netip.Prefix
}

// Counts are of packets since the process started. They outlive a device.
type Counts struct {
	// Dropped were refused by the translation, or were for an unreachable peer.
	Dropped atomic.Uint64
	// Large counts batches with a packet that may be too large for a path.
	Large atomic.Uint64
}

type Options struct {
	Log *slog.Logger
	// Changed is called when the path to a peer has changed. It must not block.
	Changed func()
	// Translator changes the addresses of packets; nil passes them as they are.
	Translator *translate.Translator
	// Whole reports whether an IPv4 packet must be sent in one piece; nil is none.
	Whole  func(packet []byte) bool
	Counts *Counts
}

// Device is a WireGuard device and the paths to its peers. Methods may be called
// concurrently. Its configuration is WireGuard's own (IpcSet, Up).
type Device struct {
	*device.Device
	Paths *paths.Manager

	staged     *staged
	handshakes *simultaneous
	ctx        context.Context
	cancel     context.CancelFunc
}

// New makes a device on the TUN, which Close closes.
func New(t tun.Device, o Options) *Device {
	d := &Device{staged: &staged{}, Paths: paths.New(paths.DefaultTiming, o.Changed, o.Log)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	in, out := newFlow(), newFlow()
	out.letGo = d.staged.flush
	// Handshakes cross on the way to an address, and on any path to a peer.
	handshakes := &simultaneous{again: d.again}
	d.handshakes = handshakes
	toAddress := handshakes.arbiter(NewBind(o.Log))
	onPaths := handshakes.arbiter(paths.NewBind(d.Paths, toAddress))
	onPaths.outermost = true
	toPeer := &whole{Bind: onPaths}
	rest := &rest{passed: func() uint64 { return in.passed() + out.passed() }}
	d.Device = device.NewDevice(
		&filtered{Device: gso.On(t, d.takes), Options: o, in: in, out: out, marks: &toPeer.marks, staged: d.staged, reader: reader{of: rest}},
		&paced{Bind: toPeer, in: in, out: out, rest: rest}, logger(o.Log))
	d.staged.dev.Store(d.Device)
	d.Paths.SetDevice(d)
	go d.Paths.Run(d.ctx)
	go rest.run(d.ctx, restEvery)
	return d
}

func (d *Device) Close() {
	d.cancel()
	d.Device.Close()
}

// SetPeers is called after WireGuard has its peers, and before packets leave for new ones. MTU is the TUN's.
func (d *Device) SetPeers(peers []Peer, mtu int) {
	d.staged.peers.Store(&peers)
	d.Paths.SetMTU(mtu)
	d.handshakes.configured()
}

// takes reports whether the peer with the address takes packets in one piece now.
func (d *Device) takes(address [4]byte) bool {
	peers := d.staged.peers.Load()
	if peers == nil || !d.Paths.AnyWhole() {
		return false
	}
	for _, p := range *peers {
		if p.CIDR.Contains(netip.AddrFrom4(address)) {
			return d.Paths.Whole(p.Key)
		}
	}
	return false
}

// Whole reports whether all peers take packets in one piece now.
func (d *Device) Whole() bool {
	peers := d.staged.peers.Load()
	if peers == nil || !d.Paths.AnyWhole() {
		return false
	}
	for _, p := range *peers {
		if !d.Paths.Whole(p.Key) {
			return false
		}
	}
	return true
}

// Accept takes a connection that is to become a stream; begun are the bytes already read.
func (d *Device) Accept(c net.Conn, begun []byte) { d.Paths.Accept(d.ctx, c, begun) }

// Use sets the address of the peer. It implements paths.Device.
func (d *Device) Use(key Key, to conn.Endpoint) {
	if p := d.LookupPeer(device.NoisePublicKey(key)); p != nil {
		p.SetEndpointFromPacket(to)
	}
}

// Wake sends the peer a packet and begins a handshake, the peer having been away. It may have started again without a
// clock: its own handshakes are replays here then, and packets of the session that it has lost tell it nothing. It
// implements paths.Device.
func (d *Device) Wake(key Key) {
	if p := d.LookupPeer(device.NoisePublicKey(key)); p != nil {
		p.SendKeepalive()
		_ = p.SendHandshakeInitiation(false) // WireGuard sends none if it has begun one a moment ago, and retries by itself
	}
}

// again discards the session with a peer and begins a handshake now, however recent the last one was.
func (d *Device) again(key Key) {
	if p := d.LookupPeer(device.NoisePublicKey(key)); p != nil {
		p.ExpireCurrentKeypairs()
		_ = p.SendHandshakeInitiation(false) // it retries by itself
	}
}

// Session is what WireGuard reports of a peer.
type Session struct {
	Endpoint      netip.AddrPort
	LastHandshake time.Time // zero if never
	Received      uint64    // bytes
	Sent          uint64    // bytes
}

func (d *Device) Sessions() (map[Key]Session, error) { return sessionsOf(d.Device) }

func sessionsOf(dev *device.Device) (map[Key]Session, error) {
	dump, err := dev.IpcGet()
	if err != nil {
		return nil, err
	}
	out := map[Key]Session{}
	var key Key
	var sec, nsec int64
	for line := range strings.Lines(dump) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "public_key" {
			key, sec, nsec = Key{}, 0, 0
			if _, err := hex.Decode(key[:], []byte(value)); err != nil || len(value) != 2*len(key) {
				return nil, fmt.Errorf("wgdev: the device reports the key %q", value)
			}
			out[key] = Session{}
			continue
		}
		s, ok := out[key]
		if !ok {
			continue // of the device, before the first peer
		}
		switch name {
		case "endpoint":
			s.Endpoint, _ = netip.ParseAddrPort(value)
		case "last_handshake_time_sec":
			_, _ = fmt.Sscan(value, &sec)
		case "last_handshake_time_nsec":
			_, _ = fmt.Sscan(value, &nsec)
		case "rx_bytes":
			_, _ = fmt.Sscan(value, &s.Received)
		case "tx_bytes":
			_, _ = fmt.Sscan(value, &s.Sent)
		}
		if sec > 0 {
			s.LastHandshake = time.Unix(sec, nsec)
		}
		out[key] = s
	}
	return out, nil
}
