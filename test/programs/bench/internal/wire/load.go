package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// settle is how long TCP may open its windows before bytes count.
const settle = 500 * time.Millisecond

// Throughput sends from podA to podB over so many connections and returns what
// arrived, bits per second, and how many bytes were carried in all, before too.
func (l *Link) Throughput(flows int, during time.Duration) (bits float64, carried int64, err error) {
	return throughput(l.net.a.pod.Do, l.net.b.pod.Do, l.from(), l.to(), l.far(), flows, during)
}

// Between sends from one pod to another, which this package did not make, over so many connections, and returns what
// arrived, bits per second.
func Between(from, to *Namespace, local, remote netip.Addr, flows int, during time.Duration) (bits float64, err error) {
	bits, _, err = throughput(from.Do, to.Do, local, remote, remote, flows, during)
	return bits, err
}

// RTT sends n datagrams of 64 bytes, one after the other, each answered by the far
// pod, and returns their round trips in seconds. One that is lost is an error.
func (l *Link) RTT(n int, each time.Duration) ([]float64, error) {
	return rtt(l.net.a.pod.Do, l.net.b.pod.Do, l.from(), l.to(), l.far(), n, each)
}

// in calls a function in some network namespace.
type in func(func() error) error

// throughput listens in to, on far, and dials remote in from: far and remote are
// the same unless a tunnel translates. Only what arrives after everybody
// is connected and settled counts.
func throughput(from, to in, local, remote, far netip.Addr, flows int, during time.Duration) (bits float64, carried int64, err error) {
	var listener net.Listener
	if err := to(func() (err error) { listener, err = net.Listen("tcp4", far.String()+":0"); return err }); err != nil {
		return 0, 0, fmt.Errorf("wire: %w", err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port

	var got atomic.Int64
	var open sync.Mutex // guards conns
	var conns []net.Conn
	keep := func(c net.Conn) { open.Lock(); conns = append(conns, c); open.Unlock() }
	var work errgroup.Group
	for range flows {
		work.Go(func() error {
			c, err := listener.Accept()
			if err != nil {
				return err
			}
			keep(c)
			_, err = io.CopyBuffer(counter{&got}, struct{ io.Reader }{c}, make([]byte, 256<<10))
			return err
		})
		var c net.Conn
		err := from(func() (err error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.AsSlice()}, Timeout: 5 * time.Second}
			c, err = d.Dial("tcp4", netip.AddrPortFrom(remote, uint16(port)).String())
			return err
		})
		if err != nil {
			listener.Close()
			return 0, 0, errors.Join(fmt.Errorf("wire: %w", err), ended(work.Wait()))
		}
		keep(c)
		work.Go(func() error {
			block := make([]byte, 256<<10)
			for {
				if _, err := c.Write(block); err != nil {
					return err
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	<-ctx.Done()
	cancel()
	begin, before := time.Now(), got.Load()
	ctx, cancel = context.WithTimeout(context.Background(), during)
	<-ctx.Done()
	cancel()
	bits = float64(got.Load()-before) * 8 / time.Since(begin).Seconds()
	open.Lock()
	for _, c := range conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	open.Unlock()
	if err := ended(work.Wait()); err != nil {
		return 0, 0, fmt.Errorf("wire: %w", err)
	}
	if bits == 0 {
		return 0, 0, errors.New("wire: not one byte arrived")
	}
	return bits, got.Load(), nil
}

// ended forgives what our own closing causes.
func ended(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) { c.n.Add(int64(len(b))); return len(b), nil }

func rtt(from, to in, local, remote, there netip.Addr, n int, each time.Duration) ([]float64, error) {
	var far, near net.PacketConn
	if err := to(func() (err error) { far, err = net.ListenPacket("udp4", there.String()+":0"); return err }); err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	defer far.Close()
	go func() {
		b := make([]byte, 64)
		for {
			n, addr, err := far.ReadFrom(b)
			if err != nil {
				return
			}
			far.WriteTo(b[:n], addr)
		}
	}()
	if err := from(func() (err error) { near, err = net.ListenPacket("udp4", local.String()+":0"); return err }); err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	defer near.Close()
	dst := net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, uint16(far.LocalAddr().(*net.UDPAddr).Port)))
	out := make([]float64, 0, n)
	msg, answer := make([]byte, 64), make([]byte, 64)
	for i := range n {
		binary.BigEndian.PutUint64(msg, uint64(i))
		begin := time.Now()
		near.SetReadDeadline(begin.Add(each))
		if _, err := near.WriteTo(msg, dst); err != nil {
			return nil, fmt.Errorf("wire: %w", err)
		}
		_, _, err := near.ReadFrom(answer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fmt.Errorf("wire: no answer to datagram %d within %v", i, each)
		case err != nil:
			return nil, fmt.Errorf("wire: %w", err)
		case binary.BigEndian.Uint64(answer) != uint64(i):
			return nil, fmt.Errorf("wire: datagram %d was answered out of order", i)
		}
		out = append(out, time.Since(begin).Seconds())
	}
	return out, nil
}
