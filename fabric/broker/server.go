package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/connlimit"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
)

// Server is a broker. Everybody may register in any room; nobody learns of a room whose name it does not have.
type Server struct {
	self    rpc.Identity
	key     wgkey.Private
	only    []string
	log     *slog.Logger
	relayed relay.Gate
	packets *packets

	mu      sync.Mutex
	members map[peer.ID]*registered
	left    []*registered // for lingering, if not members again, the oldest first
	calls   map[string]*call
}

// registered is one member. Server.mu guards nothing of it: all is constant.
type registered struct {
	member
	room, source string
	key          wgkey.Public
	changed      chan struct{} // the room has changed
	calls        chan string
	end          context.CancelFunc
}

// call waits for the called member's connection.
type call struct {
	to      peer.ID
	arrived chan net.Conn
}

// NewServer returns a broker that proves itself by self, and has the key for relay frames. It admits the groups with the
// fingerprints only, all if there are none.
func NewServer(self rpc.Identity, key wgkey.Private, only []string, log *slog.Logger) *Server {
	return &Server{self: self, key: key, only: only, log: log, relayed: relay.Gate{Total: maxRelayed},
		members: map[peer.ID]*registered{}, calls: map[string]*call{}}
}

// lingering is how long packets are relayed for a member that has disconnected: a supervisor that restarts interrupts no
// path.
const lingering = 30 * time.Second

// Serve is the broker on the listener, and on the UDP port of the same number, until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := servePackets(ctx, s.key, uint16(l.Addr().(*net.TCPAddr).Port), s.log)
	if err != nil {
		l.Close()
		return err
	}
	s.mu.Lock()
	s.packets = p
	s.mu.Unlock()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+helloPath, func(w http.ResponseWriter, _ *http.Request) {
		rpc.Write(w, http.StatusOK, hello{WireGuardKey: s.key.Public().String()})
	})
	mux.HandleFunc("POST "+roomPath, s.register)
	mux.HandleFunc("POST "+relayPath+"{id}", s.relay)
	mux.HandleFunc("POST "+callPath+"{call}", s.answered)
	server := rpc.NewServer(httpserver.Broker, s.self, mux, s.log)
	server.ConnContext = connlimit.InContext
	streams := rpc.Handover{Protocol: paths.StreamProtocol, To: s.packets.stream}
	streams.Watch(server.TLSConfig)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ServeTLS(streams.Listen(httpserver.Broker.Listen(rpc.Mortal(l))), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

var roomForm = regexp.MustCompile("^[0-9a-f]+$")

func refuse(w http.ResponseWriter, status int, code, message string) {
	rpc.Fail(w, status, &rpc.Error{Code: code, Message: message})
}

// register makes the client a member of a room for as long as the request lasts, and answers with lines.
func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	var q registration
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(answerWithin)) //nolint:errcheck // not every transport has one
	if !rpc.Read(w, r, &q) {
		return
	}
	key := publicKey(q.WireGuardKey)
	if len(q.Room) != roomLen || !roomForm.MatchString(q.Room) || key.IsZero() || len(q.Addrs) > maxAddrs || slices.ContainsFunc(q.Addrs, func(a netip.AddrPort) bool { return !a.IsValid() }) {
		refuse(w, http.StatusBadRequest, "bad-request", "this is no registration")
		return
	}
	if !pairing.Possesses(s.key, key, q.Proof, id, s.self.ID) {
		refuse(w, http.StatusForbidden, "wrong-proof", "the WireGuard key is not proved")
		return
	}
	if len(s.only) > 0 && !slices.Contains(s.only, Fingerprint(q.Room)) {
		refuse(w, http.StatusForbidden, notAdmitted, "the broker admits other groups only")
		return
	}
	source := source(r)
	if !connlimit.LastingRequest(r, source) {
		refuse(w, http.StatusServiceUnavailable, "full", "there are too many members from this address, or in all")
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	me := &registered{member: member{id, q.Addrs}, room: q.Room, source: source, key: key, changed: make(chan struct{}, 1), calls: make(chan string, relay.PerPeer), end: cancel}
	if !s.enter(me) {
		refuse(w, http.StatusServiceUnavailable, "full", "the room is full, or its WireGuard key has another member")
		return
	}
	defer s.leave(me)
	http.NewResponseController(w).SetReadDeadline(time.Time{}) //nolint:errcheck // not every transport has one
	w.WriteHeader(http.StatusOK)
	s.report(ctx, w, me)
}

// source is what counts as one sender: see connlimit.
func source(r *http.Request) string {
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	return connlimit.Source(a.Addr().Unmap()).String()
}

// enter adds a member, in place of an earlier registration of the same cluster.
func (s *Server) enter(me *registered) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id, m := range s.members {
		if id == me.ID {
			continue
		}
		if m.room == me.room {
			n++
		}
		if sameTag(m, me) {
			return false
		}
	}
	s.left = slices.DeleteFunc(s.left, func(m *registered) bool { return m.ID == me.ID || sameTag(m, me) })
	if n >= maxRoom {
		return false
	}
	if old := s.members[me.ID]; old != nil {
		old.end()
		s.news(old.room)
	} else {
		s.log.Debug("registered", "id", me.ID.Short(), "members", len(s.members)+1)
	}
	s.members[me.ID] = me
	s.news(me.room)
	return true
}

// sameTag reports whether two members cannot both have packets relayed: a frame goes by room and tag.
func sameTag(a, b *registered) bool {
	return a.key == b.key || a.room == b.room && paths.Tag(a.key.Bytes()) == paths.Tag(b.key.Bytes())
}

// leave removes a member from its room; its packets are relayed a little longer. Whoever comes and goes without pause
// takes the places of its own address: the oldest there, or where most are, is forgotten.
func (s *Server) leave(me *registered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[me.ID] != me {
		return
	}
	delete(s.members, me.ID)
	by, busiest := map[string]int{}, me.source
	for _, m := range s.left {
		by[m.source]++
	}
	if by[me.source] < perSource {
		for _, m := range s.left {
			if by[m.source] > by[busiest] {
				busiest = m.source
			}
		}
	}
	if by[me.source] >= perSource || len(s.left) >= maxMembers {
		i := slices.IndexFunc(s.left, func(m *registered) bool { return m.source == busiest })
		s.left = slices.Delete(s.left, i, i+1)
	}
	s.left = append(s.left, me)
	time.AfterFunc(lingering, func() { s.forget(me) })
	s.news(me.room)
}

func (s *Server) forget(me *registered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.left, me); i >= 0 {
		s.left = slices.Delete(s.left, i, i+1)
		s.news(me.room)
	}
}

// news is called with mu held, after a change of the room.
func (s *Server) news(room string) {
	var all []paths.Peer
	for _, m := range s.members {
		if m.room == room {
			changes.Poke(m.changed)
		}
		all = append(all, m.peer())
	}
	for _, m := range s.left {
		all = append(all, m.peer())
	}
	s.packets.serve(all)
}

func (m *registered) peer() paths.Peer {
	return paths.Peer{ID: string(m.ID), Public: m.key.Bytes(), Room: m.room}
}

// roommates are the others in the room.
func (s *Server) roommates(me *registered) []member {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []member{}
	for _, m := range s.members {
		if m != me && m.room == me.room {
			out = append(out, m.member)
		}
	}
	slices.SortFunc(out, func(a, b member) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// report writes the lines for a member until ctx ends: a list after each change of the room, calls at once.
func (s *Server) report(ctx context.Context, w http.ResponseWriter, me *registered) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	changes.Poke(me.changed)
	changed, pause := me.changed, (<-chan time.Time)(nil)
	for {
		var out any
		select {
		case <-ctx.Done():
			return
		case <-pause:
			changed, pause = me.changed, nil
			continue
		case <-changed:
			out, changed, pause = line{Members: s.roommates(me)}, nil, time.After(betweenLists)
		case name := <-me.calls:
			out = line{Call: name}
		case <-beat.C:
		}
		if write(w, out) != nil {
			return
		}
	}
}

// relay relays the connection of a member to another of its room.
func (s *Server) relay(w http.ResponseWriter, r *http.Request) {
	from, _ := rpc.PeerID(r)
	ctx, cancel := context.WithTimeout(r.Context(), relay.Limit)
	defer cancel()
	s.mu.Lock()
	me, to := s.members[from], s.members[peer.ID(r.PathValue("id"))]
	s.mu.Unlock()
	if me == nil || to == nil || to == me || to.room != me.room {
		refuse(w, http.StatusNotFound, "not-here", "there is no such member in the room")
		return
	}
	mine := s.relayed.Enter(me.source, cancel)
	if mine == nil {
		refuse(w, http.StatusServiceUnavailable, "busy", "too much is relayed at this moment")
		return
	}
	defer s.relayed.Leave(mine)
	next, err := s.dial(ctx, to)
	if err != nil {
		refuse(w, http.StatusBadGateway, "not-here", "the member does not answer")
		return
	}
	defer next.Close()
	conn, err := relay.Switch(w)
	if err != nil {
		return
	}
	defer conn.Close()
	s.log.Debug("relaying a peering", "from", from.Short(), "to", to.ID.Short())
	relay.Splice(ctx, conn, next)
}

// dial has the member open a connection.
func (s *Server) dial(ctx context.Context, to *registered) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	name, c := rand.Text(), &call{to: to.ID, arrived: make(chan net.Conn, 1)}
	s.mu.Lock()
	s.calls[name] = c
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, name)
		s.mu.Unlock()
		select {
		case late := <-c.arrived:
			late.Close()
		default:
		}
	}()
	select {
	case to.calls <- name:
	default:
		return nil, errors.New("broker: it has too many calls")
	}
	select {
	case conn := <-c.arrived:
		return conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answered takes the connection of a called member.
func (s *Server) answered(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	name := r.PathValue("call")
	s.mu.Lock()
	c := s.calls[name]
	if c != nil && c.to == id {
		delete(s.calls, name)
	}
	s.mu.Unlock()
	if c == nil || c.to != id {
		refuse(w, http.StatusNotFound, "not-here", "there is no such call")
		return
	}
	if conn, err := relay.Switch(w); err == nil {
		c.arrived <- conn
	}
}

// write writes one line, the empty one for nil.
func write(w http.ResponseWriter, v any) error {
	var text []byte
	if v != nil {
		var err error
		if text, err = json.Marshal(v); err != nil {
			return err
		}
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
