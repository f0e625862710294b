package paths

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/changes"
)

const (
	streamStuck = 15 * time.Second // for one write
	// streamBytes bounds what waits for a stream; more is dropped, as on any full link. It is more than one connection of a
	// gateway has on its way (fabric/gateway), which would lose a packet when it begins, and wait for its timer.
	streamBytes = 1280 << 10
	// firstBytes bounds the messages of this package among it, which are sent before all packets: a ping that waits for
	// packets would measure these.
	firstBytes = 16 << 10
	// pieceBytes is how much is written at once: two packets of any size, or many. readBytes is how much is read.
	pieceBytes = 129 << 10
	readBytes  = 64 << 10
	maxPacket  = 1<<16 - 1
	frameHead  = 2 // the length
)

// outbox has the frames that wait for a stream, in pieces.
type outbox struct {
	ready chan struct{}

	mu     sync.Mutex
	first  []byte
	pieces []*[]byte
	size   int // of pieces, bytes
}

var pieces = sync.Pool{New: func() any { b := make([]byte, 0, pieceBytes); return &b }}

// send queues packets; those beyond the bound are dropped.
func (s *stream) send(bufs [][]byte) error {
	s.out.mu.Lock()
	for _, b := range bufs {
		switch n := frameHead + len(b); {
		case len(b) > maxPacket:
		case len(b) > 1 && b[0] == magic && b[1] == kindControl:
			if len(s.out.first)+n <= firstBytes {
				s.out.first = frame(s.out.first, b)
			}
		case s.out.size+n <= streamBytes:
			to := s.out.room(n)
			*to = frame(*to, b)
			s.out.size += n
		}
	}
	s.out.mu.Unlock()
	changes.Poke(s.out.ready)
	return nil
}

func frame(to, packet []byte) []byte {
	return append(binary.BigEndian.AppendUint16(to, uint16(len(packet))), packet...)
}

// room returns the last piece, or a new one if that has no room for n bytes.
func (o *outbox) room(n int) *[]byte {
	if len(o.pieces) > 0 {
		if last := o.pieces[len(o.pieces)-1]; len(*last)+n <= cap(*last) {
			return last
		}
	}
	next := pieces.Get().(*[]byte)
	o.pieces = append(o.pieces, next)
	return next
}

// next returns what is to be written now, nil if nothing waits. Release is to be called after that.
func (o *outbox) next() (b []byte, release func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b = o.first; len(b) > 0 {
		o.first = nil
		return b, func() {}
	}
	if len(o.pieces) == 0 {
		return nil, nil
	}
	piece := o.pieces[0]
	o.pieces = slices.Delete(o.pieces, 0, 1)
	o.size -= len(*piece)
	return *piece, func() {
		*piece = (*piece)[:0]
		pieces.Put(piece)
	}
}

// write sends what waits until the stream ends.
func (s *stream) write() {
	defer s.close()
	for {
		select {
		case <-s.done:
			return
		case <-s.out.ready:
		}
		for b, release := s.out.next(); b != nil; b, release = s.out.next() {
			if !s.put(b) {
				return
			}
			release()
		}
	}
}

func (s *stream) put(b []byte) bool {
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
	r := bufio.NewReaderSize(s.conn, readBytes)
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
