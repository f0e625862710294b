package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Packets sends datagrams of 64 bytes from podA to podB as fast as they are taken
// and returns how many arrived, per second.
func (l *Link) Packets(during time.Duration) (float64, error) {
	return packets(l.net.a.pod.Do, l.net.b.pod.Do, l.from(), l.to(), l.far(), during)
}

func packets(from, to in, local, remote, far netip.Addr, during time.Duration) (float64, error) {
	var there, here *net.UDPConn
	listen := func(c **net.UDPConn, at netip.Addr) func() error {
		return func() (err error) {
			*c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0)))
			return err
		}
	}
	if err := to(listen(&there, far)); err != nil {
		return 0, fmt.Errorf("wire: %w", err)
	}
	defer there.Close()
	if err := from(listen(&here, local)); err != nil {
		return 0, fmt.Errorf("wire: %w", err)
	}
	defer here.Close()
	dst := netip.AddrPortFrom(remote, uint16(there.LocalAddr().(*net.UDPAddr).Port))
	begin := time.Now()
	end := begin.Add(settle + during)
	var got atomic.Int64
	var work errgroup.Group
	work.Go(func() error {
		there.SetReadDeadline(end)
		b := make([]byte, 64)
		for {
			_, _, err := there.ReadFromUDPAddrPort(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			if err != nil {
				return err
			}
			if time.Since(begin) > settle {
				got.Add(1)
			}
		}
	})
	work.Go(func() error {
		b := make([]byte, 64)
		for time.Now().Before(end) {
			for range 64 { // what a full queue refuses is not sent, and not counted
				_, _ = here.WriteToUDPAddrPort(b, dst)
			}
		}
		return nil
	})
	if err := work.Wait(); err != nil {
		return 0, fmt.Errorf("wire: %w", err)
	}
	if got.Load() == 0 {
		return 0, errors.New("wire: not one datagram arrived")
	}
	return float64(got.Load()) / during.Seconds(), nil
}
