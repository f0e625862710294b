package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// The gateway answers the names of home's Services, as home's own DNS would: with
// where pods here reach them (zone). Everything else it asks the campus's DNS. Pods have
// search domains of their home namespace, so that `name` and `name.namespace` come
// here in full.

const (
	dnsTTL   = 5 // seconds: a Service may be made anew
	dnsLimit = 4 * time.Second
	maxDNS   = 256 // questions passed on at a time
)

// names is the DNS server.
type names struct {
	g    *Gateway
	next []string // host:port of the campus's servers
	busy chan struct{}
}

// ServeDNS answers on the address until ctx ends. next are the servers that are
// asked what home does not know.
func (g *Gateway) ServeDNS(ctx context.Context, addr string, next []string) error {
	s := &names{g: g, next: next, busy: make(chan struct{}, maxDNS)}
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	defer packets.Close()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { packets.Close(); l.Close() })
	defer stop()
	go s.serveTCP(ctx, l)
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := packets.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return ctx.Err()
		}
		if err != nil {
			continue
		}
		question := append([]byte(nil), buf[:n]...)
		r, ours := s.ours(question)
		if ours && r.ask == "" {
			packets.WriteTo(r.pack(datagram), from) //nolint:errcheck // he asks again
			continue
		}
		select {
		case s.busy <- struct{}{}:
			go func() {
				defer func() { <-s.busy }()
				if answer := s.elsewhere(ctx, "udp", question, r); answer != nil {
					packets.WriteTo(answer, from) //nolint:errcheck // the client repeats the query
				}
			}()
		default: // he asks again
		}
	}
}

func (s *names) serveTCP(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		select {
		case s.busy <- struct{}{}:
		default:
			c.Close()
			continue
		}
		go func() {
			defer func() { <-s.busy }()
			defer c.Close()
			for {
				c.SetDeadline(time.Now().Add(2 * dnsLimit)) //nolint:errcheck // it fails on use
				question, err := readFramed(c)
				if err != nil {
					return
				}
				r, ours := s.ours(question)
				var answer []byte
				if ours && r.ask == "" {
					answer = r.pack(framed)
				} else {
					answer = s.elsewhere(ctx, "tcp", question, r)
				}
				if answer == nil || writeFramed(c, answer) != nil {
					return
				}
			}
		}()
	}
}

// ask passes a question on to the campus's servers, one after the other.
func (s *names) ask(ctx context.Context, network string, question []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, dnsLimit)
	defer cancel()
	for i, server := range s.next {
		limit := dnsLimit / time.Duration(len(s.next)-i+1)
		if answer := askOne(ctx, network, server, question, limit); answer != nil {
			return answer
		}
	}
	return failed(question)
}

func askOne(ctx context.Context, network, server string, question []byte, limit time.Duration) []byte {
	d := net.Dialer{Timeout: limit}
	c, err := d.DialContext(ctx, network, server)
	if err != nil {
		return nil
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit)) //nolint:errcheck // it fails on use
	if network == "tcp" {
		if writeFramed(c, question) != nil {
			return nil
		}
		answer, _ := readFramed(c)
		return answer
	}
	if _, err := c.Write(question); err != nil {
		return nil
	}
	buf := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil
		}
		if n >= 2 && len(question) >= 2 && buf[0] == question[0] && buf[1] == question[1] {
			return buf[:n]
		}
	}
}

// failed says that the campus's DNS cannot be asked, so that the pod need not wait.
func failed(question []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(question)
	if err != nil || head.Response {
		return nil
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true, RCode: dnsmessage.RCodeServerFailure,
	}}
	if q, err := p.Question(); err == nil {
		m.Questions = []dnsmessage.Question{q}
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}

func readFramed(r io.Reader) ([]byte, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeFramed(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}
