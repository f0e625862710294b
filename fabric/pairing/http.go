package pairing

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Path is the route of the exchange, on the control port, outside the tunnel.
const Path = "/v1/peering"

const (
	postTimeout = 5 * time.Second
	dialTimeout = 2 * time.Second
	// maxInFlight bounds concurrent requests of strangers.
	maxInFlight = 32
)

// fromStrangers is a handler for requests of anybody: a bounded number at once, each in bounded time. The certificate
// identifies the sender.
func fromStrangers(doing string, take func(http.ResponseWriter, *http.Request, Sender, json.RawMessage)) http.Handler {
	slots := make(chan struct{}, maxInFlight)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			rpc.Fail(w, http.StatusServiceUnavailable, refuse("busy", "too many clusters %s at this moment; it is tried again", doing))
			return
		}
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(postTimeout)) //nolint:errcheck // not every transport has one
		from, err := sender(r)
		if err != nil {
			rpc.Fail(w, http.StatusBadRequest, refuse("bad-message", "%v", err))
			return
		}
		var body json.RawMessage
		if rpc.Read(w, r, &body) {
			take(w, r, from, body)
		}
	})
}

// Handler answers the exchange. Inside reports whether a request came through the tunnel; received is called for every
// valid request, refused or not.
func (p *Party) Handler(inside func(*http.Request) bool, received func(Sender, Message, error)) http.Handler {
	return fromStrangers("are peering", func(w http.ResponseWriter, r *http.Request, from Sender, body json.RawMessage) {
		m, err := Decode(body)
		var answer Message
		if err == nil {
			from.Inside = inside(r)
			answer, err = p.Receive(from, m)
		}
		received(from, m, err)
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
	return Sender{ID: id, Certificate: r.TLS.PeerCertificates[0].Raw, Addr: addr.Addr().Unmap(), Binding: binding(*r.TLS)}, nil
}

// PostTo returns a Post to the control address of the peer want (empty: of any cluster). Dial is nil for the LAN;
// otherwise it leads through the tunnel.
func PostTo(id rpc.Identity, want peer.ID, addr netip.AddrPort, dial Dial) Post {
	return func(ctx context.Context, compose func(Sender) Message) (Message, Sender, error) {
		ctx, cancel := context.WithTimeout(ctx, postTimeout)
		defer cancel()
		c, from, err := open(ctx, id, want, addr, dial)
		if err != nil {
			return Message{}, Sender{}, err
		}
		return send(ctx, c, from, addr, compose)
	}
}

// send sends one message over the connection and closes it.
func send(ctx context.Context, c *tls.Conn, from Sender, addr netip.AddrPort, compose func(Sender) Message) (Message, Sender, error) {
	defer c.Close()
	var body json.RawMessage
	if err := post(ctx, c, addr, Path, compose(from), &body); err != nil {
		return Message{}, from, err
	}
	answer, err := Decode(body)
	return answer, from, err
}

const (
	// maxDials bounds the addresses of one cluster that are dialled at once. Each begins dialDelay after the previous one, or
	// when one has failed: most do not lead anywhere, and somebody may have announced them for that.
	maxDials  = 4
	dialDelay = 500 * time.Millisecond
	// dialFresh is how long a connection may wait for its first message; the other end closes it after postTimeout.
	dialFresh = time.Second
)

// DialEach dials the control addresses of the peer want (empty: of any cluster), a few at once, and yields the results as
// they come. What is not used is closed.
func DialEach(ctx context.Context, id rpc.Identity, want peer.ID, addrs []netip.AddrPort) iter.Seq[*Dialled] {
	return func(yield func(*Dialled) bool) {
		ctx, cancel := context.WithCancel(ctx)
		results := make(chan *Dialled, len(addrs))
		begun, done := 0, 0
		defer func() {
			cancel()
			for ; done < begun; done++ {
				(<-results).close()
			}
		}()
		next := time.NewTimer(0)
		defer next.Stop()
		for done < len(addrs) {
			var turn <-chan time.Time
			if begun < len(addrs) && begun-done < maxDials {
				turn = next.C
			}
			select {
			case <-turn:
				d := &Dialled{Addr: addrs[begun], again: PostTo(id, want, addrs[begun], nil)}
				begun++
				next.Reset(dialDelay)
				go func() {
					ctx, cancel := context.WithTimeout(ctx, postTimeout)
					defer cancel()
					d.conn, d.from, d.Err = open(ctx, id, want, d.Addr, nil)
					d.at = time.Now()
					results <- d
				}()
			case d := <-results:
				done++
				next.Reset(0)
				more := yield(d)
				if d.close(); !more {
					return
				}
			}
		}
	}
}

// Dialled is an address at which the cluster has proved itself, or why not.
type Dialled struct {
	Addr netip.AddrPort
	Err  error

	conn  *tls.Conn // nil once it is used
	from  Sender
	at    time.Time
	again Post
}

// Post is a Post to the address. The first message takes the open connection.
func (d *Dialled) Post(ctx context.Context, compose func(Sender) Message) (Message, Sender, error) {
	c := d.conn
	if d.conn = nil; c == nil {
		return d.again(ctx, compose)
	}
	if time.Since(d.at) > dialFresh {
		c.Close()
		return d.again(ctx, compose)
	}
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	return send(ctx, c, d.from, d.Addr, compose)
}

func (d *Dialled) close() {
	if d.conn != nil {
		d.conn.Close()
	}
}

// Dial opens connections inside the tunnel.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Who returns the ID of the cluster at an address.
func Who(ctx context.Context, id rpc.Identity, addr netip.AddrPort) (peer.ID, error) {
	c, from, err := open(ctx, id, "", addr, nil)
	if err != nil {
		return "", err
	}
	c.Close()
	return from.ID, nil
}

// bindingLabel makes the binding of a connection, in the manner of RFC 9266 with this project's own name.
const bindingLabel = "EXPORTER-rivulet-peering"

func binding(s tls.ConnectionState) []byte {
	b, err := s.ExportKeyingMaterial(bindingLabel, nil, 32)
	if err != nil {
		return nil // then no proof is valid
	}
	return b
}

// open opens a connection and identifies the cluster there.
func open(ctx context.Context, id rpc.Identity, want peer.ID, addr netip.AddrPort, dial Dial) (*tls.Conn, Sender, error) {
	inside := dial != nil
	if !inside {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	raw, err := dial(ctx, "tcp", addr.String())
	if err != nil {
		return nil, Sender{}, fmt.Errorf("pairing: %w", err)
	}
	c := tls.Client(raw, rpc.ClientTLS(id, want))
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, Sender{}, fmt.Errorf("pairing: %w", err)
	}
	state := c.ConnectionState()
	got, err := peer.IDFromCertificate(state.PeerCertificates[0])
	if err != nil {
		c.Close()
		return nil, Sender{}, err
	}
	return c, Sender{ID: got, Certificate: state.PeerCertificates[0].Raw, Addr: addr.Addr().Unmap(), Binding: binding(state), Inside: inside}, nil
}

// post sends a request over this connection only.
func post(ctx context.Context, c net.Conn, addr netip.AddrPort, path string, in, out any) error {
	conns := make(chan net.Conn, 1)
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
	return rpc.Call(ctx, &http.Client{Transport: transport, CheckRedirect: noRedirect}, http.MethodPost, "https://"+hostPort(addr)+path, in, out)
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// hostPort omits the zone, which has no meaning for the other side and is not valid in URLs.
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
	return errors.As(err, &e) && !slices.Contains(waits, e.Code)
}

// waits are the codes of refusals that are temporary or wait for an operator.
var waits = []string{"busy", "pending", "leaving"}

// Code is the code of a refusal, empty if err is none.
func Code(err error) string {
	var e *rpc.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
