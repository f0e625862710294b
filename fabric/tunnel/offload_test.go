package tunnel

import (
	"bytes"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a pod gives its kernel in one piece, to be cut into datagrams as late as
// possible, is cut before translation and arrives as the datagrams it stands for.
func TestDatagramsInOnePiece(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t)
	ping(t, w.a.pod, "10.200.0.7", 56) // the tunnel is up
	far := w.b.pod.packets(":5353")
	near, err := w.a.pod.dial("udp4", "10.200.0.7:5353", reachLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	const each, n = 1200, 40
	raw, _ := near.(*net.UDPConn).SyscallConn()
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, each) })
	if err != nil {
		t.Skipf("needs a kernel with UDP segmentation: %v", err)
	}
	piece := make([]byte, each*n)
	for i := range n {
		for j := range each {
			piece[i*each+j] = byte(i + 1)
		}
	}
	if _, err := near.Write(piece); err != nil {
		t.Fatal(err)
	}
	seen := map[byte]bool{}
	buf := make([]byte, 1<<16)
	_ = far.SetReadDeadline(time.Now().Add(reachLimit))
	for len(seen) < n {
		size, from, err := far.ReadFrom(buf)
		if err != nil {
			t.Fatalf("%d of %d datagrams arrived: %v", len(seen), n, err)
		}
		if host, _, _ := net.SplitHostPort(from.String()); host != "10.201.0.5" {
			t.Fatalf("one comes from %s", from)
		}
		if size != each || !bytes.Equal(buf[:size], bytes.Repeat(buf[:1], each)) {
			t.Fatalf("one of %d bytes arrived, or of several", size)
		}
		seen[buf[0]] = true
	}
}
