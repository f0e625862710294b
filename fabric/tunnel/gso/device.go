package gso

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// header is what the kernel puts before each packet of a TUN with offloads (struct virtio_net_hdr, in the host's order).
type header struct {
	flags, kind           byte
	segment, start, sumAt int
}

const headerSize = 10

func parseHeader(b []byte) header {
	order := binary.NativeEndian
	return header{flags: b[0], kind: b[1], segment: int(order.Uint16(b[4:])), start: int(order.Uint16(b[6:])), sumAt: int(order.Uint16(b[8:]))}
}

// Device is a TUN that passes packets in one piece to those peers that take them, and splits all others, which the TUN
// below would do as well. It is for IPv4 only, like the tunnel.
type Device struct {
	tun.Device
	file    *os.File
	takes   func(destination [4]byte) bool
	buf     []byte        // of the one reader
	Refused atomic.Uint64 // marked packets of peers that are invalid
}

// On returns t with that; or t itself, where the kernel has no offloads. Takes reports whether the peer with that address
// takes packets in one piece at the moment.
func On(t tun.Device, takes func(destination [4]byte) bool) tun.Device {
	if t.BatchSize() == 1 || t.File() == nil {
		return t
	}
	return &Device{Device: t, file: t.File(), takes: takes, buf: make([]byte, headerSize+1<<16)}
}

// Read has one reader, WireGuard's.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	n, err := d.file.Read(d.buf)
	if errors.Is(err, syscall.EBADFD) {
		err = os.ErrClosed
	}
	if err != nil {
		return 0, err
	}
	if n <= headerSize {
		return 0, nil
	}
	// A packet that cannot pass is dropped: an error would end the device.
	count, err := d.divide(parseHeader(d.buf), d.buf[headerSize:n], bufs, sizes, offset)
	if err != nil {
		return 0, nil //nolint:nilerr // see above
	}
	return count, nil
}

// divide gives a packet of the kernel to bufs, whole or in parts.
func (d *Device) divide(h header, pkt []byte, bufs [][]byte, sizes []int, offset int) (int, error) {
	if Marked(pkt) {
		return 0, errPacket // the bit is for this package alone
	}
	switch h.kind {
	case unix.VIRTIO_NET_HDR_GSO_NONE:
		if h.flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
			if err := Sum(pkt, h.start, h.sumAt); err != nil {
				return 0, err
			}
		}
		if len(pkt) > len(bufs[0])-offset {
			return 0, errPacket
		}
		sizes[0] = copy(bufs[0][offset:], pkt)
		return 1, nil
	case unix.VIRTIO_NET_HDR_GSO_TCPV4:
		if d.takes([4]byte(destination(pkt))) {
			if n := Divide(pkt, h.segment, bufs, sizes, offset); n > 0 {
				return n, nil
			}
		}
		return Split(pkt, h.segment, bufs, sizes, offset)
	case unix.VIRTIO_NET_HDR_GSO_UDP_L4:
		return Split(pkt, h.segment, bufs, sizes, offset)
	}
	return 0, errPacket
}

func destination(pkt []byte) []byte {
	if len(pkt) < ipHead {
		return make([]byte, 4)
	}
	return pkt[ipHead-4 : ipHead]
}

// Write gives packets to the kernel: marked ones as they are, in one piece, all others as the TUN below does. WireGuard
// calls it concurrently, once per peer.
func (d *Device) Write(bufs [][]byte, offset int) (int, error) {
	var failed []error
	total, plain := 0, 0 // bufs[plain:i] are not written yet
	others := func(end int) {
		if plain < end {
			n, err := d.Device.Write(bufs[plain:end], offset)
			total, failed = total+n, append(failed, err)
		}
	}
	for i, b := range bufs {
		pkt := b[offset:]
		if !Marked(pkt) {
			continue
		}
		others(i)
		plain = i + 1
		head, segment, ok := Open(pkt)
		if !ok {
			d.Refused.Add(1)
			continue
		}
		whole := b[offset-headerSize:]
		fillHeader(whole, head, segment)
		n, err := d.file.Write(whole)
		total, failed = total+n, append(failed, err)
	}
	others(len(bufs))
	return total, errors.Join(failed...)
}

// fillHeader describes a TCP packet whose checksum is over the pseudo header so far.
func fillHeader(b []byte, head, segment int) {
	order := binary.NativeEndian
	b[0], b[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_TCPV4
	order.PutUint16(b[2:], uint16(head))
	order.PutUint16(b[4:], uint16(segment))
	order.PutUint16(b[6:], ipHead)
	order.PutUint16(b[8:], tcpSumAt)
}
