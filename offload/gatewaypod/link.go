package gatewaypod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	// proxyWithin is how long an API server that cannot reach pods may delay the port-forward.
	proxyWithin = 5 * time.Second
	// joinBytes is how much is copied at once.
	joinBytes = 128 << 10
	// pairBytes is what waits at most between this process and the tunnel's, each way.
	pairBytes = 512 << 10
)

// link keeps a stream of the tunnel open to the running pod, through the API server. It is kept while UDP works as
// well, as a ready alternative.
func (g *Gateway) link(ctx context.Context) error {
	if g.cfg.Transport == TransportUDP {
		<-ctx.Done()
		return ctx.Err()
	}
	var plain time.Time // until then the API server's proxy of pods is not tried
	return g.retry(ctx, "stream", func(ctx context.Context, pod string) error {
		far, err := g.dialStream(ctx, pod, time.Now().After(plain))
		if err != nil {
			return err
		}
		defer far.Close()
		if _, ok := far.(*proxied); ok {
			defer func(began time.Time) {
				if time.Since(began) < lasted {
					plain = time.Now().Add(proxyAgain)
				}
			}(time.Now())
		}
		near, handed, err := pair()
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

// proxyAgain is how long port-forwards are used after a stream through the proxy of pods has failed.
const proxyAgain = 10 * time.Minute

// dialStream connects to the gateway in the pod: by the API server's proxy of pods, if it may be tried and works,
// otherwise by a port-forward.
func (g *Gateway) dialStream(ctx context.Context, pod string, proxy bool) (net.Conn, error) {
	if proxy {
		within, cancel := context.WithTimeout(ctx, proxyWithin)
		defer cancel()
		c, err := upgraded(within, g.cfg.Campus, g.campus, g.cfg.Namespace, pod)
		if err == nil {
			return c, nil
		}
		g.log.Debug("no stream by the proxy of pods; a port-forward is tried", "pod", pod, "err", err)
	}
	return g.dial(ctx, pod, gatewayproto.StreamPort)
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

// pair is a connection within this machine, both ends of it: a socket pair, which costs less than the loopback and its
// rules.
func pair() (a, b net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	conn := func(fd int) net.Conn {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, pairBytes) // it works with less
		f := os.NewFile(uintptr(fd), "stream")
		defer f.Close() // FileConn has its own
		c, failed := net.FileConn(f)
		err = errors.Join(err, failed)
		return c
	}
	if a, b = conn(fds[0]), conn(fds[1]); err != nil {
		for _, c := range []net.Conn{a, b} {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	return a, b, nil
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
		err := copyAll(to, from)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
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

// copyAll copies until one of the two fails or ends. What is there already is written at once.
func copyAll(to io.Writer, from io.Reader) error {
	buf := make([]byte, joinBytes)
	ready, _ := from.(interface{ more() bool })
	for {
		n, err := from.Read(buf)
		for err == nil && ready != nil && ready.more() && len(buf)-n >= recordBytes {
			var next int
			next, err = from.Read(buf[n:])
			n += next
		}
		if n > 0 {
			if _, failed := to.Write(buf[:n]); failed != nil {
				return failed
			}
		}
		if err != nil {
			return err
		}
	}
}
