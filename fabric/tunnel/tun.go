package tunnel

import (
	"sync/atomic"

	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/translate"
)

// translated is a TUN whose packets are translated between clusters. The inner
// device is embedded so that its batch size passes through: reading one packet
// at a time costs two thirds of the throughput.
type translated struct {
	tun.Device
	translator *translate.Translator
	dropped    *atomic.Uint64
	in, out    *flow
	// own is our address in the tunnel; what it asks paths with is marked.
	own   uint32
	marks *marks
	// staged knows who is not there to be sent to.
	staged *staged
	large  *atomic.Uint64 // counts batches with a packet that may be too large for a path
	reader reader
}

// largePacket is one that a path worth the name may be too narrow for, bytes.
const largePacket = 1000

// Read gets packets from the kernel. One that may not pass gets size 0, which
// WireGuard skips; an error would close the whole device.
func (t *translated) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	t.out.wait()
	t.reader.before(bufs)
	n, err := t.Device.Read(bufs, sizes, offset)
	table, gone := t.translator.Table(), t.staged.now()
	passed, large := 0, false
	for i := range n {
		if sizes[i] == 0 {
			continue
		}
		pkt := bufs[i][offset : offset+sizes[i]]
		ask := isAsk(pkt, t.own)
		if gone != nil && gone.refuses(pkt) || !table.Out(pkt) {
			sizes[i] = 0
			t.dropped.Add(1)
			continue
		}
		t.marks.set(bufs[i], ask)
		large = large || !ask && len(pkt) > largePacket
		passed++
	}
	if large {
		t.large.Add(1)
	}
	t.out.enter(passed)
	return n, err
}

// Write gives packets to the kernel, those that may not pass left out. It runs
// concurrently, once per peer; bufs is the caller's own.
func (t *translated) Write(bufs [][]byte, offset int) (int, error) {
	defer t.in.leave(len(bufs))
	table := t.translator.Table()
	pass := bufs[:0]
	for _, b := range bufs {
		if table.In(b[offset:]) {
			pass = append(pass, b)
		} else {
			t.dropped.Add(1)
		}
	}
	if len(pass) == 0 {
		return 0, nil
	}
	return t.Device.Write(pass, offset)
}
