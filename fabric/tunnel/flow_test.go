//go:build !race

package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pod that floods a peer which is not there takes no memory worth the name, and
// the others go on. Whether they do is a matter of time, which the race detector takes.
func TestFloodForAPeerThatIsGone(t *testing.T) {
	w := newWorld(t)
	_, gone := newKeys(t)
	w.a.want.Peers = append(w.a.want.Peers, Peer{ID: "gone", PublicKey: gone, Endpoint: netip.MustParseAddrPort("192.168.77.77:7442"),
		LocalMappedCIDR: aSeenByB, PeerMappedCIDR: netip.MustParsePrefix("10.203.0.0/16")})
	w.apply(t)
	conn, err := w.a.pod.dial("udp4", "10.203.0.7:9", reachLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, _ := conn.(*net.UDPConn).SyscallConn()
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1200) })
	if err != nil {
		t.Skipf("needs a kernel with UDP segmentation: %v", err)
	}
	piece := make([]byte, 50*1200)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): // leaves the rest something of the machine
				_, _ = conn.Write(piece)
			}
		}
	}()
	stream(t, w.a.pod, w.b.pod, "10.200.0.7", "10.201.0.5", 4<<20)
	close(stop)
	<-done
	// Each packet that is kept is a span of 64 KiB of address space.
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.a.pid(t)))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kB int
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kB); n == 1 && kB > 128<<10 {
			t.Errorf("the tunnel took %d MB", kB>>10)
		}
	}
}
