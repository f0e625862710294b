package gatewaypod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/gateway/gatewayproto"
)

// Pauses before a stream that ended is opened again, doubling.
const (
	retryFirst = 500 * time.Millisecond
	retryMost  = 15 * time.Second
	// lasted is how long a stream must have lived for the next one to be opened at once.
	lasted     = 10 * time.Second
	dialWithin = 20 * time.Second
)

// link keeps a stream of the tunnel open to the running pod, through the API server. It is kept while UDP works as
// well, as a ready alternative.
func (g *Gateway) link(ctx context.Context) error {
	if g.cfg.Transport == TransportUDP {
		<-ctx.Done()
		return ctx.Err()
	}
	return g.retry(ctx, "stream", func(ctx context.Context, pod string) error {
		far, err := g.dial(ctx, pod, gatewayproto.StreamPort)
		if err != nil {
			return err
		}
		defer far.Close()
		near, handed, err := tcpPair(ctx)
		if err != nil {
			return err
		}
		defer near.Close()
		err = g.cfg.Fabric.GatewayStream(handed)
		handed.Close() // the tunnel has its own
		if err != nil {
			return err
		}
		g.setLinked(true)
		defer g.setLinked(false)
		g.problem("stream", nil)
		return join(ctx, near, far)
	})
}

func (g *Gateway) setLinked(is bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.linked = is
}

func (g *Gateway) dial(ctx context.Context, pod string, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	return forward(ctx, g.cfg.Campus, g.campus, g.cfg.Namespace, pod, port)
}

// retry repeats do with the running pod until ctx ends. It ends do when another pod replaces that one.
func (g *Gateway) retry(ctx context.Context, what string, do func(ctx context.Context, pod string) error) error {
	changed, stop := g.subs.Changed()
	defer stop()
	pause := changes.Backoff{First: retryFirst, Longest: retryMost}
	for ctx.Err() == nil {
		g.mu.Lock()
		pod := g.pod
		g.mu.Unlock()
		if pod == "" {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		began := time.Now()
		within, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- do(within, pod) }()
		var err error
		for waiting := true; waiting; {
			select {
			case err = <-ended:
				waiting = false
			case <-changed:
				g.mu.Lock()
				another := g.pod != pod
				g.mu.Unlock()
				if another {
					cancel()
				}
			}
		}
		cancel()
		if ctx.Err() != nil {
			break
		}
		g.problem(what, err)
		if time.Since(began) > lasted {
			pause.Reset()
		}
		select {
		case <-ctx.Done():
		case <-changed: // the pod may have changed
		case <-time.After(pause.Next()):
		}
	}
	return ctx.Err()
}

// tcpPair is a connection on the loopback, both ends of it. The tunnel's process accepts TCP only.
func tcpPair(ctx context.Context) (a, b *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	defer l.Close()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", l.Addr().String())
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	a = c.(*net.TCPConn)
	l.SetDeadline(time.Now().Add(5 * time.Second)) //nolint:errcheck // it fails on use
	for {
		if b, err = l.AcceptTCP(); err != nil {
			a.Close()
			return nil, nil, fmt.Errorf("gateway: %w", err)
		}
		if b.RemoteAddr().String() == a.LocalAddr().String() {
			return a, b, nil
		}
		b.Close() // from another process of this machine
	}
}

var errEnded = errors.New("gateway: the stream ended")

// join copies both ways until one ends or ctx does, and closes both. A side that is not read from makes the other wait:
// each direction has one buffer.
func join(ctx context.Context, a, b net.Conn) error {
	stop := context.AfterFunc(ctx, func() { a.Close(); b.Close() })
	defer stop()
	var both sync.WaitGroup
	why := make(chan error, 2)
	one := func(to, from net.Conn) {
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 64<<10))
		if err == nil || errors.Is(err, net.ErrClosed) {
			err = errEnded
		}
		why <- err
		a.Close()
		b.Close()
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
	return <-why
}
