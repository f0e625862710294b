package pairing

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Path is the route of the exchange, on the control port, outside the tunnel.
const Path = "/v1/peering"

const (
	postTimeout = 5 * time.Second
	dialTimeout = 2 * time.Second
	// maxInFlight bounds what strangers can make us do at once.
	maxInFlight = 32
)

// Handler answers the exchange. heard is told of everyone who got through to it,
// refused or not.
func (p *Party) Handler(heard func(Sender, Message, error)) http.Handler {
	slots := make(chan struct{}, maxInFlight)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			rpc.Fail(w, http.StatusServiceUnavailable, refuse("busy", "too many clusters are peering at this moment; it is tried again"))
			return
		}
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(postTimeout)) //nolint:errcheck // not every transport has one
		from, err := sender(r)
		if err != nil {
			rpc.Fail(w, http.StatusBadRequest, refuse("bad-message", "%v", err))
			return
		}
		var body json.RawMessage
		if !rpc.Read(w, r, &body) {
			return
		}
		m, err := Decode(body)
		var answer Message
		if err == nil {
			answer, err = p.Receive(from, m)
		}
		heard(from, m, err)
		var e *rpc.Error
		switch {
		case err == nil:
			rpc.Write(w, http.StatusOK, answer)
		case errors.As(err, &e):
			rpc.Fail(w, http.StatusForbidden, e)
		default:
			rpc.Fail(w, http.StatusInternalServerError, &rpc.Error{Code: "internal", Message: err.Error()})
		}
	})
}

func sender(r *http.Request) (Sender, error) {
	id, ok := rpc.PeerID(r)
	if !ok {
		return Sender{}, fmt.Errorf("no client certificate")
	}
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return Sender{}, fmt.Errorf("unusable source address %q", r.RemoteAddr)
	}
	return Sender{ID: id, Certificate: r.TLS.PeerCertificates[0].Raw, Addr: addr.Addr().Unmap()}, nil
}

// PostTo returns a Post that reaches the control address of the peer want (empty:
// of whoever is there).
func PostTo(id rpc.Identity, want peer.ID, addr netip.AddrPort) Post {
	return func(ctx context.Context, m Message) (Message, Sender, error) {
		ctx, cancel := context.WithTimeout(ctx, postTimeout)
		defer cancel()
		dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: rpc.ClientTLS(id, want)}
		c, err := dialer.DialContext(ctx, "tcp", addr.String())
		if err != nil {
			return Message{}, Sender{}, fmt.Errorf("pairing: %w", err)
		}
		defer c.Close()
		cert := c.(*tls.Conn).ConnectionState().PeerCertificates[0]
		got, err := peer.IDFromCertificate(cert)
		if err != nil {
			return Message{}, Sender{}, err
		}
		from := Sender{ID: got, Certificate: cert.Raw, Addr: addr.Addr().Unmap()}
		conns := make(chan net.Conn, 1) // the request goes over this connection or not at all
		conns <- c
		transport := &http.Transport{
			DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
				select {
				case c := <-conns:
					return c, nil
				default:
					return nil, fmt.Errorf("pairing: %s closed the connection", addr)
				}
			},
			MaxResponseHeaderBytes: 32 << 10,
			DisableKeepAlives:      true,
		}
		var body json.RawMessage
		err = rpc.Call(ctx, &http.Client{Transport: transport, CheckRedirect: noRedirect}, http.MethodPost, "https://"+hostPort(addr)+Path, m, &body)
		if err != nil {
			return Message{}, from, err
		}
		answer, err := Decode(body)
		return answer, from, err
	}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// hostPort leaves the zone out: it means nothing to the other side and URLs do not like it.
func hostPort(a netip.AddrPort) string {
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port()).String()
}

// Refused reports whether err is one that waiting does not cure.
func Refused(err error) bool {
	var e *rpc.Error
	var wrong *rpc.WrongPeerError
	if errors.As(err, &wrong) {
		return true
	}
	return errors.As(err, &e) && e.Code != "busy"
}
