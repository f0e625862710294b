package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"rivulet/fabric/gateway/gatewayproto"
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

// A stream that comes by the API server's proxy of pods is one like any other; strangers who open some neither get
// further nor keep home's request for the state out, and no more than a few of them wait.
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
	await.True(t, long, "the stream is no beginner any more", func() bool { return w.upgrades.Load() == 0 })
	var strangers []net.Conn
	for range maxUpgrades {
		c, answer := askForStream(t, at, gatewayproto.StreamUpgrade)
		if answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(answer.Status)
		}
		strangers = append(strangers, c)
	}
	if _, answer := askForStream(t, at, gatewayproto.StreamUpgrade); answer.StatusCode != http.StatusServiceUnavailable {
		t.Error("one more than may wait: ", answer.Status)
	}
	if code, text := do(t, http.MethodGet, "http://"+at+"/v1/ready", ""); code != http.StatusNoContent {
		t.Error("not ready: ", code, text)
	}
	for _, c := range strangers {
		c.Close()
	}
	await.True(t, long, "there is room again", func() bool { return w.upgrades.Load() == 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
