package wgdev

import (
	"errors"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/translate"
)

// filtered is a TUN whose packets are translated between clusters, counted, and dropped if they may not pass. The inner
// device is embedded so that its batch size passes through: reading one packet at a time costs two thirds of the
// throughput.
type filtered struct {
	tun.Device
	Options
	in, out *flow
	marks   *marks  // of packets that must not be fragmented
	staged  *staged // has the peers without a session
	reader  reader
}

// largePacket is the size from which a usual path may be too narrow, bytes.
const largePacket = 1000

// Read gets packets from the kernel. One that may not pass gets size 0, which WireGuard skips; an error would close the
// whole device.
func (t *filtered) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	t.out.wait()
	t.reader.before(bufs)
	n, err := t.Device.Read(bufs, sizes, offset)
	if errors.Is(err, unix.ENOBUFS) {
		// Not of the packets: the kernel had more changes of interfaces than wireguard-go's subscription holds, as when fifty
		// pods start. What it would report is not needed here.
		t.Log.Warn("the state of the TUN is not followed any more", "err", err)
		n, err = t.Device.Read(bufs, sizes, offset)
	}
	gone := t.staged.now()
	var table *translate.Table
	if t.Translator != nil {
		table = t.Translator.Table()
	}
	passed, large := 0, false
	for i := range n {
		if sizes[i] == 0 {
			continue
		}
		pkt := bufs[i][offset : offset+sizes[i]]
		whole := t.Whole != nil && t.Whole(pkt)
		if gone != nil && gone.refuses(pkt) || table != nil && !table.Out(pkt) {
			sizes[i] = 0
			t.Counts.Dropped.Add(1)
			continue
		}
		t.marks.set(bufs[i], whole)
		large = large || !whole && len(pkt) > largePacket
		passed++
	}
	if large {
		t.Counts.Large.Add(1)
	}
	t.out.enter(passed)
	return n, err
}

// Write gives packets to the kernel, without those that may not pass. It runs concurrently, once per peer; bufs belongs
// to the caller.
func (t *filtered) Write(bufs [][]byte, offset int) (int, error) {
	t.in.weigh(bufs)
	defer t.in.leave(len(bufs))
	if t.Translator == nil {
		return t.Device.Write(bufs, offset)
	}
	table := t.Translator.Table()
	pass := bufs[:0]
	for _, b := range bufs {
		if table.In(b[offset:]) {
			pass = append(pass, b)
		} else {
			t.Counts.Dropped.Add(1)
		}
	}
	if len(pass) == 0 {
		return 0, nil
	}
	return t.Device.Write(pass, offset)
}
