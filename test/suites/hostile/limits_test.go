package hostile

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/fabric/peer"
	"rivulet/test/harness/labtest"
)

// One consumer opens connections to the control port from ten addresses of its prefix,
// with its own certificate, and holds them. It gets its share (512); another
// consumer is served, and the honest neighbour stays connected.
func TestOneConsumerHoldsItsShare(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	p, other := consumer(t, ctx, "mallory", "10.77.0.66"), consumer(t, ctx, "trudy", "10.77.0.67")
	control := netip.MustParseAddrPort(p.Control())
	var mu sync.Mutex
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	// hold asks once and keeps the connection.
	hold := func(from netip.Addr) error {
		raw, err := p.DialFrom(ctx, from, "tcp", control)
		if err != nil {
			return err
		}
		c := tls.Client(raw, p.TLS())
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err = io.WriteString(c, "GET /v1/ping HTTP/1.1\r\nHost: x\r\n\r\n"); err == nil {
			_, err = c.Read(make([]byte, 4096))
		}
		if err != nil {
			c.Close()
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		held = append(held, c)
		return nil
	}
	addr := p.As.Addr()
	var tries sync.WaitGroup
	for range 10 {
		addr = addr.Next()
		from := addr
		tries.Go(func() {
			for range 60 {
				hold(from) //nolint:errcheck // some are refused
			}
		})
	}
	tries.Wait()
	open := 0
	for _, c := range held {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			open++
		}
	}
	t.Logf("%d of 600 connections are held", open)
	if open == 0 || open > 512 {
		t.Errorf("one consumer holds %d connections, want 512 at most", open)
	}
	for range 20 {
		if r, err := other.Do(ctx, "GET", "/v1/ping", nil, nil); err != nil || r.Status > 299 {
			t.Fatalf("another consumer: %v, %v", r, err)
		}
	}
	for _, q := range labtest.Status(t, ctx, victim).Peers {
		if q.Name == "b" && q.State != peer.Connected {
			t.Errorf("the honest neighbour is %s: %s", q.State, q.Reason)
		}
	}
}

// A cluster names itself so that its twin would have the name of a namespace that people
// make; and it asks what others are here.
func TestNamesAndNeighbours(t *testing.T) {
	ctx := suite.Bounded(t, 3*time.Minute)
	p := consumer(t, ctx, "manager", "10.77.0.68")
	if twin := p.Twin(ctx, "cert"); !strings.HasSuffix(twin, "-"+peer.ID(p.ID).Short()) {
		t.Errorf("the twin of cert is called %s, as anybody might call a namespace", twin)
	}
	raw, err := p.Dial(ctx, "tcp", p.Control())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, p.TLS())
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprint(c, "GET /v1/offer HTTP/1.1\r\nHost: x\r\n\r\n")
	told := ""
	for b := make([]byte, 4096); !strings.Contains(told, `"allocatable"`); {
		n, err := c.Read(b)
		if told += string(b[:n]); err != nil {
			t.Fatalf("%q, %v", told, err)
		}
	}
	for _, q := range labtest.Status(t, ctx, victim).Peers {
		if q.Name == "b" && (strings.Contains(told, string(q.ID)) || strings.Contains(told, q.PeerMappedCIDR.Addr().String())) {
			t.Errorf("a consumer is told of another cluster: %s", told)
		}
	}
}
