package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/edns"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/request"
	miekg "github.com/miekg/dns"

	"rivulet/fabric/netmon"
)

// grace is how long queries in progress may take at the end.
const grace = time.Second

func (s *Server) listen(ctx context.Context) ([]*miekg.Server, error) {
	addr := s.cfg.Addr.String()
	var lc net.ListenConfig
	udp, err := lc.ListenPacket(ctx, "udp", addr)
	if err != nil {
		return nil, s.taken("udp", err)
	}
	tcp, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		udp.Close()
		return nil, s.taken("tcp", err)
	}
	return []*miekg.Server{{PacketConn: udp}, {Listener: tcp}}, nil
}

// taken adds to err which process holds the port, if that is the cause.
func (s *Server) taken(network string, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("dns: %w; pods resolve no names until it works; it is tried again", err)
	}
	port := s.cfg.Addr.Port()
	return fmt.Errorf("dns: port %d/%s is taken%s (%w); stop that program, pods resolve no names until then",
		port, network, netmon.Listener(network, int(port)), syscall.EADDRINUSE)
}

// serve runs the servers until ctx ends or one of them fails.
func (s *Server) serve(ctx context.Context, servers []*miekg.Server) error {
	failed, started := make(chan error, len(servers)), make(chan struct{}, len(servers))
	for _, server := range servers {
		server.Handler = miekg.HandlerFunc(s.handle)
		server.NotifyStartedFunc = func() { started <- struct{}{} }
		go func() { failed <- server.ActivateAndServe() }()
	}
	for range servers {
		<-started
	}
	s.bound.Store(true)
	defer s.bound.Store(false)
	s.log.Info("answering DNS queries", "addr", s.cfg.Addr.String())

	var err error
	running := len(servers)
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("dns: %w", err)
		running--
	}
	end, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for _, server := range servers {
		_ = server.ShutdownContext(end)
	}
	for range running {
		<-failed
	}
	return err
}

// handle answers one query from the network.
func (s *Server) handle(w miekg.ResponseWriter, r *miekg.Msg) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("answering a query failed", "panic", p, "stack", string(debug.Stack()))
			refuse(w, r, miekg.RcodeServerFailure)
		}
	}()
	if r.Opcode != miekg.OpcodeQuery { // others would be forwarded in the device's name
		refuse(w, r, miekg.RcodeNotImplemented)
		return
	}
	if len(r.Question) != 1 || r.Question[0].Qclass != miekg.ClassINET || r.Question[0].Qtype == miekg.TypeAXFR || r.Question[0].Qtype == miekg.TypeIXFR {
		refuse(w, r, miekg.RcodeRefused)
		return
	}
	if m, err := edns.Version(r); err != nil {
		_ = w.WriteMsg(m)
		return
	}
	// The number of CNAMEs followed; CoreDNS counts in the context.
	ctx := context.WithValue(context.Background(), dnsserver.LoopKey{}, 0)
	s.answer(ctx, request.NewScrubWriter(r, w), r)
}

func (s *Server) answer(ctx context.Context, w miekg.ResponseWriter, r *miekg.Msg) {
	code, err := s.chain.ServeDNS(ctx, w, r)
	if err != nil {
		s.log.Debug("no answer", "name", r.Question[0].Name, "type", miekg.TypeToString[r.Question[0].Qtype], "err", err)
	}
	if !plugin.ClientWrite(code) {
		refuse(w, r, code)
	}
}

// lookup follows the CNAME of an ExternalName Service for the client.
func (s *Server) lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*miekg.Msg, error) {
	w := nonwriter.New(state.W)
	s.answer(ctx, w, state.NewWithQuestion(name, qtype).Req)
	return w.Msg, nil
}

func refuse(w miekg.ResponseWriter, r *miekg.Msg, code int) {
	m := new(miekg.Msg)
	m.SetRcode(r, code)
	state := request.Request{W: w, Req: r}
	state.SizeAndDo(m)
	_ = w.WriteMsg(m)
}
