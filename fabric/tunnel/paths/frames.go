package paths

import (
	"bufio"
	"encoding/binary"
	"io"
	"sync"
	"time"

	"rivulet/fabric/changes"
)

const (
	streamStuck = 15 * time.Second // for one write
	// streamBytes bounds what waits for a stream; more is dropped, as on any full link.
	streamBytes = 1 << 20
	// firstBytes bounds the messages of this package among it, which are sent before all packets: a ping that waits for
	// packets would measure these.
	firstBytes = 16 << 10
	// keptBytes is how much room is kept for the next packets.
	keptBytes = 256 << 10
	// pieceBytes is how much is written at once, and read.
	pieceBytes = 64 << 10
	maxPacket  = 1<<16 - 1
	frameHead  = 2 // the length
)

// outbox has the frames that wait for a stream.
type outbox struct {
	ready chan struct{}

	mu            sync.Mutex
	first, others []byte
}

// send queues packets; those beyond the bound are dropped.
func (s *stream) send(bufs [][]byte) error {
	s.out.mu.Lock()
	for _, b := range bufs {
		if len(b) > 1 && b[0] == magic && b[1] == kindControl {
			s.out.first = frame(s.out.first, b, firstBytes)
		} else {
			s.out.others = frame(s.out.others, b, streamBytes)
		}
	}
	s.out.mu.Unlock()
	changes.Poke(s.out.ready)
	return nil
}

// frame appends a packet, unless there are more than most bytes then.
func frame(to, packet []byte, most int) []byte {
	if len(packet) > maxPacket || len(to)+frameHead+len(packet) > most {
		return to
	}
	return append(binary.BigEndian.AppendUint16(to, uint16(len(packet))), packet...)
}

// take returns what waits, and leaves an empty buffer in its place.
func (o *outbox) take(others *[]byte, instead []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*others, o.others = o.others, instead[:0]
}

// urgent returns the messages that wait to be sent before all packets.
func (o *outbox) urgent() (first []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first, o.first = o.first, nil
	return first
}

// write sends what waits until the stream ends.
func (s *stream) write() {
	defer s.close()
	var sent, spare []byte
	for {
		select {
		case <-s.done:
			return
		case <-s.out.ready:
		}
		s.out.take(&sent, spare)
		for rest := sent; ; {
			if first := s.out.urgent(); !s.put(first) {
				return
			}
			if len(rest) == 0 {
				break
			}
			n := piece(rest)
			if !s.put(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
		spare = sent
		if cap(spare) > keptBytes && len(sent) <= pieceBytes { // the burst that needed it is over
			spare = nil
		}
	}
}

// piece is the length of the first frames: about pieceBytes, and no part of one.
func piece(frames []byte) (n int) {
	for n < len(frames) {
		next := n + frameHead + int(binary.BigEndian.Uint16(frames[n:]))
		if n > 0 && next > pieceBytes {
			break
		}
		n = next
	}
	return n
}

func (s *stream) put(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	s.conn.SetWriteDeadline(time.Now().Add(streamStuck)) //nolint:errcheck // it fails on use
	_, err := s.conn.Write(b)
	return err == nil
}

// received is a packet of a stream.
type received struct {
	packet []byte
	end    *Endpoint
	buf    *[]byte
}

func (r received) free() { giveBuffer(r.buf) }

// read receives packets until the stream ends.
func (s *stream) read(m *Manager) {
	defer s.close()
	r := bufio.NewReaderSize(s.conn, pieceBytes)
	for {
		b, err := readPacket(r)
		if err != nil {
			return
		}
		packet, end := *b, s.path.peer.end
		if len(packet) > 0 && packet[0] == magic {
			packet, end = m.receive(packet, origin{kind: Stream, w: s.path})
		} else if s.path.peer.broker || m.hub.Load() {
			packet = nil
		}
		if len(packet) == 0 {
			giveBuffer(b)
			continue
		}
		select {
		case m.rx <- received{packet: packet, end: end, buf: b}:
		case <-s.done:
			return
		}
	}
}

func readPacket(r io.Reader) (*[]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := takeBuffer(int(binary.BigEndian.Uint16(head[:])))
	if _, err := io.ReadFull(r, *b); err != nil {
		giveBuffer(b)
		return nil, err
	}
	return b, nil
}

// Buffers come in two sizes: one that holds any packet of a usual link, and one that holds any packet.
const (
	bufferSize = 2 << 10
	longSize   = 65 << 10 // with the header of a relay
)

var (
	buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}
	long    = sync.Pool{New: func() any { b := make([]byte, longSize); return &b }}
)

func takeBuffer(n int) *[]byte {
	pool := &buffers
	if n > bufferSize {
		pool = &long
	}
	b := pool.Get().(*[]byte)
	*b = (*b)[:n]
	return b
}

func giveBuffer(b *[]byte) {
	switch cap(*b) {
	case bufferSize:
		buffers.Put(b)
	case longSize:
		long.Put(b)
	}
}
