//go:build !race

package tunnel

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Anybody can send anything to the tunnel's port. A connection in a tunnel goes on
// meanwhile, each of its words within a second, and the process does not grow. It is a
// matter of time and memory, of which the race detector takes both.
func TestNoiseOnThePort(t *testing.T) {
	w := newWorld(t)
	w.apply(t)
	l := w.a.pod.listen("10.42.0.5:7000")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	at := net.JoinHostPort(aSeenByB.Addr().Next().Next().Next().Next().Next().String(), "7000")
	c, err := w.b.pod.dial("tcp", at, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	st, err := w.a.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := resident(t, st.PID)

	var sent atomic.Uint64
	stop, done := make(chan struct{}), make(chan struct{})
	target := &net.UDPAddr{IP: net.IPv4(192, 168, 77, 1), Port: wgPort}
	sock := w.b.node.packets("192.168.77.2:0")
	go func() {
		defer close(done)
		defer sock.Close()
		random := rand.NewChaCha8([32]byte{1})
		buf := make([]byte, 1400)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = random.Read(buf)
			size := []int{0, 1, 3, 31, 32, 64, 92, 148, 149, 1400}[n%10]
			if n%2 == 0 && size > 4 { // what looks like each of WireGuard's messages
				copy(buf, []byte{byte(1 + n/10%4), 0, 0, 0})
			}
			if _, err := sock.WriteTo(buf[:size], target); err == nil {
				sent.Add(1)
			}
		}
	}()
	words := 0
	for begun := time.Now(); time.Since(begun) < 3*time.Second; words++ {
		text := fmt.Sprintf("word %d", words)
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatalf("after %d packets of noise: %v", sent.Load(), err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
			t.Fatalf("after %d packets of noise: %q, %v", sent.Load(), got, err)
		}
	}
	close(stop)
	<-done
	grown := resident(t, st.PID) - before
	t.Logf("%d packets of noise, %d words came back meanwhile, the process grew by %d KiB", sent.Load(), words, grown)
	if words < 10 || sent.Load() < 1000 {
		t.Errorf("%d words, %d packets", words, sent.Load())
	}
	if grown > 48<<10 {
		t.Errorf("the process grew by %d KiB", grown)
	}
}

// resident is the process's memory, KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
