package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"rivulet/fabric/gateway/gatewayproto"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/tunnel/paths"
	"rivulet/test/harness/await"
)

// ask opens a connection to the ready port and asks for a stream.
func askForStream(t *testing.T, at, upgrade string) (net.Conn, *http.Response) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	req, _ := http.NewRequest(http.MethodGet, "http://"+at+gatewayproto.StreamPath, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", upgrade)
	if err := req.Write(c); err != nil {
		t.Fatal(err)
	}
	// One byte at a time: what follows the answer is the stream's.
	answer, err := http.ReadResponse(bufio.NewReaderSize(struct{ io.Reader }{&slow{c}}, 16), req)
	if err != nil {
		t.Fatal(err)
	}
	return c, answer
}

// slow reads one byte at a time.
type slow struct{ from io.Reader }

func (s *slow) Read(b []byte) (int, error) { return s.from.Read(b[:1]) }

// A stream that comes by the API server's proxy of pods is one like any other.
func TestStreamByUpgrade(t *testing.T) {
	w := newWorld(t)
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.ServeReady(ctx, l) }()
	at := l.Addr().String()
	c, answer := askForStream(t, at, gatewayproto.StreamUpgrade)
	if answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(answer.Status)
	}
	w.far.Accept(c, nil)
	in, err := w.dialHome(netip.AddrPortFrom(seenPod, podEcho(t)), long)
	if err != nil {
		t.Fatal(err)
	}
	if got := say(t, in, []byte("hello")); string(got) != "hello" {
		t.Errorf("%q", got)
	}
	if _, answer := askForStream(t, at, "websocket"); answer.StatusCode != http.StatusBadRequest {
		t.Error("another protocol: ", answer.Status)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Pods of the campus hold connections without number, idle ones and upgrades that prove nothing: that costs the gateway
// little, home's stream stays, and home opens another and asks for the state.
func TestPodsOfTheCampusHoldConnections(t *testing.T) {
	w := newWorld(t)
	l := listen(t)
	go w.ServeReady(t.Context(), l) //nolint:errcheck // it ends with the test
	at := l.Addr().String()
	begin := func() {
		t.Helper()
		c, answer := askForStream(t, at, gatewayproto.StreamUpgrade)
		if answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(answer.Status)
		}
		w.far.Accept(c, nil)
	}
	talk := func() {
		t.Helper()
		in, err := w.dialHome(netip.AddrPortFrom(seenPod, podEcho(t)), long)
		if err != nil {
			t.Fatal(err)
		}
		if got := say(t, in, []byte("hello")); string(got) != "hello" {
			t.Errorf("%q", got)
		}
	}
	begin()
	talk()
	await.True(t, long, "home has a place of its own", func() bool { return home(w) == 1 })
	before := inUse()
	var held []net.Conn
	for i := range 2000 {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 9, byte(1+i%40))}}
		c, err := d.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
		if i%2 == 0 {
			io.WriteString(c, "GET "+gatewayproto.StreamPath+" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: "+gatewayproto.StreamUpgrade+"\r\n\r\n")
		}
	}
	if grown := int64(inUse()) - int64(before); grown > 16<<20 {
		t.Errorf("%d MiB more are in use", grown>>20)
	}
	if code, text := do(t, http.MethodGet, "http://"+at+"/v1/ready", ""); code != http.StatusNoContent {
		t.Error("not ready: ", code, text)
	}
	talk()
	begin()
	await.True(t, long, "home has a second stream", func() bool { return home(w) == 2 })
	talk()
	most := httpserver.GatewayReady.Conns.Strangers
	await.NoError(t, t.Context(), long, "those that are too many are closed", func() error {
		open := 0
		for _, c := range held {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				open++
			}
		}
		if open > most {
			return fmt.Errorf("%d connections of strangers are open, %d may be", open, most)
		}
		return nil
	})
}

// home counts the streams that have been proved to be home's.
func home(w *world) int {
	st, err := w.tunnel.Status()
	if err != nil {
		return 0
	}
	n := 0
	for _, p := range st.Peers[0].Paths {
		if p.Kind == paths.Stream {
			n++
		}
	}
	return n
}

// inUse is what the process has of memory for what it does.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
