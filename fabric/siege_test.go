package fabric

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// descriptors makes room for n connections and returns for how many there is: each
// has two ends in this process.
func descriptors(t *testing.T, n int) int {
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		t.Fatal(err)
	}
	old := have
	if want := uint64(n + 2000); have.Cur < want {
		have.Cur, have.Max = want, max(want, have.Max)
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have) != nil {
			have.Cur, have.Max = old.Max, old.Max
			syscall.Setrlimit(syscall.RLIMIT_NOFILE, &have)
		}
		t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
	}
	syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have)
	return min(n, int(have.Cur)-1000)
}

// One machine holds ten thousand connections to the control port, in every way to say
// nothing or nonsense. Peers do not notice, a newcomer becomes a peer, and what is
// held in memory stays small.
func TestSiege(t *testing.T) {
	w := newWorld(t)
	a := w.cluster(1, "a")
	b := w.cluster(2, "b")
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
	addr := fmt.Sprintf("127.0.0.1:%d", a.cfg.Port)
	stranger, err := rpc.NewIdentity(newKey(77), "stranger")
	if err != nil {
		t.Fatal(err)
	}
	before, routines := inUse(), runtime.NumGoroutine()
	lost := make(chan struct{})
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		for {
			select {
			case <-lost:
				return
			default:
			}
			if s := a.view(b).State; s != peer.Connected {
				t.Errorf("b is %s", s)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()

	n := descriptors(t, 10_000)
	noise := make([]byte, 4096)
	rand.Read(noise)
	slow := func(c net.Conn) {} // filled in below
	ways := []func(net.Conn){
		func(net.Conn) {},                                            // says nothing
		func(c net.Conn) { c.Write([]byte{0x16}) },                   // the beginning of a handshake
		func(c net.Conn) { c.Write([]byte{0x16, 3, 1, 2, 0, 1}) },    // a little more of it
		func(c net.Conn) { c.Write(noise) },                          // noise
		func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\n") }, // another protocol
		func(c net.Conn) { slow(c) },
	}
	handshakes := 0
	slow = func(c net.Conn) { // a proper handshake, and then a request that never ends
		if handshakes++; handshakes > 200 {
			return
		}
		tc := tls.Client(c, rpc.ClientTLS(stranger, ""))
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if tc.Handshake() != nil {
			return
		}
		if handshakes%2 == 0 {
			io.WriteString(tc, "POST "+pairing.Path+" HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 100))
		} else {
			io.WriteString(tc, "POST "+pairing.Path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{")
		}
	}
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for i := range n {
		c, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		held = append(held, c)
		ways[i%len(ways)](c)
	}
	t.Logf("%d connections are held by one machine", len(held))
	if got := runtime.NumGoroutine() - routines; got > 20*fromLAN.PerSource {
		t.Errorf("%d goroutines more", got)
	}
	if grown := int64(inUse()) - int64(before); grown > 32<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	c := w.cluster(3, "c") // comes from the very address of the siege
	a.awaitState(c, peer.Connected)
	seen := a.view(b).LastSeen
	a.await("word from b", func() bool { return a.view(b).LastSeen.After(seen) })
	close(lost)
	<-watch

	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(stranger, "")}}
	resp, err := client.Get("https://" + addr + "/v1/ping")
	if err != nil {
		t.Fatalf("after the siege: %v", err)
	}
	resp.Body.Close()
}

// inUse is what the process has of memory for what it does, not what it could give back.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
