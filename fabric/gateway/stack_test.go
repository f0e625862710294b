package gateway

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"pgregory.net/rapid"
)

// arrived counts the bytes of TCP that a stack would get, by port.
type arrived map[uint16]int

func (a arrived) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	raw := pkt.Data().AsRange().ToSlice()
	a[binary.BigEndian.Uint16(raw[20:])] += len(raw) - 40
}

func (arrived) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// segment is a TCP packet of a connection, with as much data.
func segment(port uint16, sequence, size int) []byte {
	pkt := make([]byte, 16+40+size)
	ip := pkt[16:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+size))
	copy(ip[12:], homePod.AsSlice())
	copy(ip[16:], seenPod.AsSlice())
	binary.BigEndian.PutUint16(ip[20:], port)
	binary.BigEndian.PutUint32(ip[24:], uint32(sequence))
	ip[32], ip[33] = 5<<4, 0x10
	return pkt
}

// Whatever segments of however many connections come in one batch, all of them are with the stack afterwards: none waits
// for the next batch.
func TestNoSegmentWaits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, err := newNetstack(func(netip.Addr) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		got := arrived{}
		n.join.Dispatcher = got
		want, next := arrived{}, map[uint16]int{}
		var batch [][]byte
		for range rapid.IntRange(1, 128).Draw(t, "packets") {
			port := uint16(rapid.IntRange(1, 200).Draw(t, "port"))
			size := rapid.SampledFrom([]int{1, 600, 1200}).Draw(t, "size")
			batch = append(batch, segment(port, next[port], size))
			next[port] += size
			want[port] += size
		}
		if _, err := n.Write(batch, 16); err != nil {
			t.Fatal(err)
		}
		for port, size := range want {
			if got[port] != size {
				t.Fatalf("port %d: %d bytes of %d", port, got[port], size)
			}
		}
	})
}
