package fabric

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// costs bounds what one party adds to the process's memory, bytes.
const costs = 32 << 20

// deaf opens a connection with HTTP/2 on which no answer's body is taken, and sends n requests with 30 kB of headers each.
// It returns false if the server does not speak HTTP/2.
func deaf(t *testing.T, addr string, id rpc.Identity, path string, n int) bool {
	t.Helper()
	d := net.Dialer{Timeout: 10 * time.Second}
	raw, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	config := rpc.ClientTLS(id, "")
	config.NextProtos = []string{"h2", "http/1.1"}
	c := tls.Client(raw, config)
	raw.SetDeadline(time.Now().Add(time.Minute))
	if c.Handshake() != nil {
		return true // one connection too many
	}
	if c.ConnectionState().NegotiatedProtocol != "h2" {
		return false
	}
	io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for acked := false; !acked; { // what is beyond its settings is refused afterwards
		frame, err := f.ReadFrame()
		if err != nil {
			return true
		}
		if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
			_ = f.WriteSettingsAck()
			acked = true
		}
	}
	go io.Copy(io.Discard, c) // so that the server can write all that it may
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "x"}, {":path", path}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true}) // the same bytes each time
	}
	for j := range 10 {
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprint("x-", j), Value: strings.Repeat("~", 3000), Sensitive: true})
	}
	for i := range n {
		b := head.Bytes()
		first := b[:min(len(b), 16<<10)]
		rest := b[len(first):]
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: first, EndStream: true, EndHeaders: len(rest) == 0})
		for len(rest) > 0 {
			part := rest[:min(len(rest), 16<<10)]
			rest = rest[len(part):]
			_ = f.WriteContinuation(uint32(2*i+1), len(rest) == 0, part)
		}
	}
	return true
}

// Strangers on the LAN, whoever is in the tunnel, and a peer there send many large requests at once and take no answer:
// that costs a few megabytes, and another peer is answered.
func TestRequestsWithoutNumber(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "c")
	for _, p := range []*cluster{b, c} {
		a.awaitState(p, peer.Connected)
		p.awaitState(a, peer.Connected)
	}
	stranger, err := rpc.NewIdentity(newKey(77), "stranger")
	if err != nil {
		t.Fatal(err)
	}
	a.Handle("GET /v1/held", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	a.Handle("GET /v1/short", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("x", 2000)) }))
	inside := netip.AddrPortFrom(inTunnel, a.cfg.Port).String()
	if deaf(t, fmt.Sprintf("127.0.0.1:%d", a.cfg.Port), stranger, "/v1/peering", 250) {
		t.Error("strangers on the LAN have HTTP/2")
	}
	for what, try := range map[string]struct {
		id   rpc.Identity
		path string
	}{
		"somebody in the tunnel":       {stranger, "/v1/short"},
		"a peer's requests that last":  {b.cfg.Identity, "/v1/held"},
		"a peer that takes no answers": {b.cfg.Identity, "/v1/short"},
	} {
		t.Run(what, func(t *testing.T) {
			before := inUse()
			for range 30 { // 225 MB of requests
				deaf(t, inside, try.id, try.path, 250)
			}
			grown := int64(inUse()) - int64(before) // of both ends
			t.Logf("%d MiB more are in use", grown>>20)
			if grown > costs {
				t.Error("that is too much")
			}
		})
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: rpc.ClientTLS(c.cfg.Identity, a.cfg.Identity.ID), ForceAttemptHTTP2: true}}
	resp, err := client.Get("https://" + inside + "/v1/short")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); n != 2000 || err != nil || resp.ProtoMajor != 2 {
		t.Errorf("another peer gets %d bytes by %s, %v", n, resp.Proto, err)
	}
}
