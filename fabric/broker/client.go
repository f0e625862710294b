package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
)

// Source is the name of the discovery source.
const Source = "broker"

// ClientConfig has the inputs of a Client. All fields are needed.
type ClientConfig struct {
	Self rpc.Identity
	// Room is the group's at a broker, empty outside of a group.
	Room func(broker peer.ID) string
	Key  func() wgkey.Private
	// Addrs are this cluster's control addresses. The broker gets those on the Internet.
	Addrs func() []netip.AddrPort
	// Discovered processes a hint. Arrived takes a connection of a member, until it ends.
	Discovered func(source string, ev discovery.Event)
	Arrived    func(context.Context, net.Conn)
	// Changed is called after a change of Tunnel.
	Changed func()
	// Problem sets the problem of the brokers; nil clears it.
	Problem func(*rpc.Error)
	// Notes stores the brokers' keys, so that a path by a broker outlives a restart.
	Notes trust.Notes
	// Retry is the first pause before a broker is tried again.
	Retry time.Duration
	Log   *slog.Logger
}

// Status is one broker as the client sees it.
type Status struct {
	Address string `json:"address"`
	Reached bool   `json:"reached"`
	// Members are the others in the room.
	Members int `json:"members"`
	// Reason is why it is not reached.
	Reason string `json:"reason,omitempty"`
}

// Client registers with brokers. Its methods may be called concurrently.
type Client struct {
	cfg  ClientConfig
	kick chan struct{}

	saving sync.Mutex // held while known is stored

	mu       sync.Mutex
	wanted   []Address
	sessions map[Address]*session
	known    map[string]known // by Address
}

// known is what was learnt of a broker. It stays while the broker is not reached.
type known struct {
	Key string         `json:"key"` // its WireGuard key
	At  netip.AddrPort `json:"at"`
}

const note = "brokers"

// session is the registration with one broker. Client.mu guards the fields below it.
type session struct {
	c  *Client
	at Address

	cancel  context.CancelFunc
	again   context.CancelFunc // ends the present connection
	given   string             // what the present registration was made of
	reached bool
	failed  int // in a row
	reason  string
	members []member
}

// NewClient returns a client of no broker.
func NewClient(cfg ClientConfig, brokers []Address) *Client {
	c := &Client{cfg: cfg, kick: make(chan struct{}, 1), wanted: brokers, sessions: map[Address]*session{}, known: map[string]known{}}
	if blob, err := cfg.Notes.Note(note); err == nil && blob != nil {
		if err := json.Unmarshal(blob, &c.known); err != nil || c.known == nil {
			cfg.Log.Warn("the keys of brokers are not read; they are learnt again", "err", err)
			c.known = map[string]known{}
		}
	}
	return c
}

// learn records what the broker has proved, and reports whether it is new.
func (c *Client) learn(at Address, k known) (news bool) {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.mu.Lock()
	if c.known[at.String()] == k {
		c.mu.Unlock()
		return false
	}
	c.known[at.String()] = k
	maps.DeleteFunc(c.known, func(text string, _ known) bool {
		return !slices.ContainsFunc(c.wanted, func(a Address) bool { return a.String() == text })
	})
	blob, err := json.Marshal(c.known)
	c.mu.Unlock()
	if err == nil {
		err = c.cfg.Notes.PutNote(note, blob)
	}
	if err != nil {
		c.cfg.Log.Warn("the key of a broker is not stored; a restart interrupts paths by it", "err", err)
	}
	return true
}

// Set replaces the brokers. A registration with any other ends at once.
func (c *Client) Set(brokers []Address) {
	c.mu.Lock()
	same := slices.Equal(c.wanted, brokers)
	c.wanted = brokers
	c.mu.Unlock()
	if !same {
		changes.Poke(c.kick)
	}
}

// Again is to be called after a change of the group, the key or the addresses.
func (c *Client) Again() { changes.Poke(c.kick) }

// Run registers until ctx ends.
func (c *Client) Run(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	for {
		c.mu.Lock()
		for at, s := range c.sessions {
			if !slices.Contains(c.wanted, at) || c.cfg.Room(at.ID) == "" {
				s.cancel()
				delete(c.sessions, at)
			} else if s.again != nil && s.given != c.given(at.ID) {
				s.again()
			}
		}
		for _, at := range c.wanted {
			if c.sessions[at] == nil && c.cfg.Room(at.ID) != "" {
				s := &session{c: c, at: at}
				var own context.Context
				own, s.cancel = context.WithCancel(ctx)
				c.sessions[at] = s
				loops.Go(func() { s.run(own) })
			}
		}
		c.mu.Unlock()
		c.report()
		c.cfg.Changed()
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
		}
	}
}

// given is what a registration is made of.
func (c *Client) given(broker peer.ID) string {
	return fmt.Sprint(c.cfg.Room(broker), c.cfg.Key().Public(), c.cfg.Addrs())
}

// all are the sessions in the order of the configuration. It is called with mu held.
func (c *Client) all() (out []*session) {
	for _, at := range c.wanted {
		if s := c.sessions[at]; s != nil {
			out = append(out, s)
		}
	}
	return out
}

// Status returns the brokers.
func (c *Client) Status() (out []Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.all() {
		out = append(out, Status{Address: s.at.host(), Reached: s.reached, Members: len(s.members), Reason: s.reason})
	}
	return out
}

// Tunnel are the brokers as the data plane needs them. Its lock is a leaf.
func (c *Client) Tunnel() (out []tunnel.Broker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.wanted {
		if k := c.known[a.String()]; k.At.IsValid() && c.cfg.Room(a.ID) != "" {
			at := []netip.AddrPort{k.At}
			out = append(out, tunnel.Broker{ID: string(a.ID), PublicKey: publicKey(k.Key), UDP: at, TCP: at})
		}
	}
	return out
}

// To are the brokers in whose room the cluster is.
func (c *Client) To(id peer.ID) (out []Address) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.all() {
		if s.reached && slices.ContainsFunc(s.members, func(m member) bool { return m.ID == id }) {
			out = append(out, s.at)
		}
	}
	return out
}

// Dial opens a connection to another member through the broker.
func (c *Client) Dial(ctx context.Context, via Address, to peer.ID) (net.Conn, error) {
	return c.upgrade(ctx, via, relayPath+string(to))
}

func (c *Client) upgrade(ctx context.Context, via Address, path string) (net.Conn, error) {
	raw, err := dial(ctx, via)
	if err != nil {
		return nil, err
	}
	return relay.Upgrade(ctx, raw, c.cfg.Self, via.ID, path)
}

func dial(ctx context.Context, at Address) (net.Conn, error) {
	return (&net.Dialer{Timeout: answerWithin, KeepAlive: heartbeat}).DialContext(ctx, "tcp", at.host())
}

// report reports the brokers that were not reached twice in a row.
func (c *Client) report() {
	c.mu.Lock()
	var why []string
	for _, s := range c.all() {
		if s.failed > 1 {
			why = append(why, s.at.host()+": "+s.reason)
		}
	}
	c.mu.Unlock()
	if len(why) == 0 {
		c.cfg.Problem(nil)
		return
	}
	c.cfg.Problem(&rpc.Error{Code: "broker", Message: "no registration with the broker " + strings.Join(why, "; "),
		Cure: "start rivulet broker there, open its port for TCP and UDP, or correct trust.broker; it is tried again by itself, and other peers are not affected"})
}

// run registers again and again until ctx ends.
func (s *session) run(ctx context.Context) {
	wait := changes.Backoff{First: s.c.cfg.Retry, Longest: 60 * s.c.cfg.Retry}
	for ctx.Err() == nil {
		own, again := context.WithCancel(ctx)
		s.c.mu.Lock()
		s.again, s.given = again, s.c.given(s.at.ID)
		s.c.mu.Unlock()
		err := panics.Call(func() error { return s.register(own) })
		renew := own.Err() != nil
		again()
		s.c.mu.Lock()
		was := s.reached
		s.reached = false
		if was {
			wait.Reset()
			s.failed = 0
		}
		if !renew {
			s.failed++
			s.reason = explain(err, s.c.cfg.Room(s.at.ID))
		}
		s.c.mu.Unlock()
		s.hints(nil)
		if ctx.Err() != nil {
			return
		}
		s.c.report()
		if !renew {
			s.c.cfg.Log.Debug("broker", "broker", s.at.host(), "err", err)
			wait.Wait(ctx)
		}
	}
}

// explain is a failure for people.
func explain(err error, room string) string {
	var wrong *rpc.WrongPeerError
	var op *net.OpError
	var refused *rpc.Error
	switch {
	case errors.As(err, &refused) && refused.Code == notAdmitted:
		return "it admits other groups only; this one with rivulet broker --only " + Fingerprint(room)
	case err == nil || errors.Is(err, io.EOF):
		return "it has closed the connection"
	case errors.As(err, &wrong):
		return "another answers there, with the ID " + string(wrong.Got)
	case errors.As(err, &op):
		return peer.Text(op.Error())
	}
	return peer.Text(err.Error())
}

// register registers with the broker, and follows its lines.
func (s *session) register(ctx context.Context) error {
	c := s.c.cfg
	raw, err := dial(ctx, s.at)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	defer raw.Close()
	conn := tls.Client(raw, rpc.ClientTLS(c.Self, s.at.ID))
	greet, cancel := context.WithTimeout(ctx, 2*answerWithin)
	defer cancel()
	if err := conn.HandshakeContext(greet); err != nil {
		return err
	}
	conn.SetDeadline(time.Now().Add(2 * answerWithin)) //nolint:errcheck // it fails on use
	r := bufio.NewReader(conn)
	var h hello
	resp, err := request(conn, r, http.MethodGet, helloPath, nil)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(resp.Body, rpc.MaxBody)).Decode(&h)
		io.Copy(io.Discard, io.LimitReader(resp.Body, rpc.MaxBody)) //nolint:errcheck // the next request fails
		resp.Body.Close()
	}
	if err != nil {
		return err
	}
	key, own := publicKey(h.WireGuardKey), c.Key()
	if key.IsZero() {
		return errors.New("it has no valid key")
	}
	resp, err = request(conn, r, http.MethodPost, roomPath, registration{Room: c.Room(s.at.ID), WireGuardKey: own.Public().String(),
		Proof: pairing.Possession(own, key, c.Self.ID, s.at.ID), Addrs: public(c.Addrs())})
	if err != nil {
		return err
	}
	defer func() {
		raw.Close() // before the body, which would be read to its end
		resp.Body.Close()
	}()
	at := raw.RemoteAddr().(*net.TCPAddr).AddrPort()
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if s.c.learn(s.at, known{key.String(), at}) {
		c.Changed()
	}
	return s.follow(ctx, conn, resp.Body)
}

// request sends one request over the connection; an answer that is no success is an error.
func request(conn net.Conn, r *bufio.Reader, method, path string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequest(method, "https://broker"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		var e rpc.Error
		if err := json.NewDecoder(io.LimitReader(resp.Body, rpc.MaxBody)).Decode(&e); err != nil {
			return nil, fmt.Errorf("it answered %s", resp.Status)
		}
		return nil, rpc.Received(e)
	}
	return resp, nil
}

// betweenLines bounds the work that a broker makes: lines wait in the connection.
const betweenLines = 50 * time.Millisecond

// follow processes the broker's lines until the connection ends.
func (s *session) follow(ctx context.Context, conn net.Conn, body io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	called := make(chan struct{}, relay.PerPeer)
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, rpc.MaxBody)
	for conn.SetDeadline(time.Now().Add(3*heartbeat)) == nil && lines.Scan() {
		var l line
		if len(lines.Bytes()) == 0 {
			continue
		}
		if json.Unmarshal(lines.Bytes(), &l) != nil || len(l.Members) > maxRoom {
			return errors.New("its answer is not understood")
		}
		if l.Call == "" {
			s.hints(l.Members)
			s.listed()
			if !changes.Wait(ctx, betweenLists/2) {
				return ctx.Err()
			}
			continue
		}
		select {
		case called <- struct{}{}:
			go func() {
				defer func() { <-called }()
				defer panics.To(func(err error) { s.c.cfg.Log.Error("a call of the broker failed", "err", err) })
				s.answer(ctx, l.Call)
			}()
		default: // too many at once
		}
		if !changes.Wait(ctx, betweenLines) {
			return ctx.Err()
		}
	}
	return lines.Err()
}

// listed records that the broker does its work.
func (s *session) listed() {
	s.c.mu.Lock()
	first := !s.reached
	s.reached, s.failed, s.reason = true, 0, ""
	s.c.mu.Unlock()
	if first {
		s.c.cfg.Log.Info("registered with the broker", "broker", s.at.host())
		s.c.report()
	}
}

// answer opens the connection of a call, and serves it.
func (s *session) answer(ctx context.Context, call string) {
	if strings.ContainsAny(call, "/?# ") || len(call) > roomLen {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, relay.Limit)
	defer cancel()
	conn, err := s.c.upgrade(ctx, s.at, callPath+call)
	if err != nil {
		s.c.cfg.Log.Debug("a call of the broker failed", "err", err)
		return
	}
	s.c.cfg.Arrived(ctx, conn)
}

// hints reports the differences between the last list and now.
func (s *session) hints(now []member) {
	now = slices.DeleteFunc(now, func(m member) bool { return !m.ID.Valid() || m.ID == s.c.cfg.Self.ID })
	s.c.mu.Lock()
	before := list(s.members)
	s.members = now
	s.c.mu.Unlock()
	before.Report(list(now), func(ev discovery.Event) { s.c.cfg.Discovered(Source+"/"+string(s.at.ID), ev) })
}

// public are the addresses that cannot be of a site, at most as many as a member may have.
func public(addrs []netip.AddrPort) []netip.AddrPort {
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.AddrPort) bool { return !paths.Public(a) })
	return addrs[:min(len(addrs), maxAddrs)]
}

// list is a list of members as discovery entries.
func list(members []member) discovery.List {
	out := discovery.List{}
	for _, m := range members {
		out[string(m.ID)] = discovery.Entry{Key: string(m.ID), ID: m.ID, Addrs: public(m.Addrs)}
	}
	return out
}
