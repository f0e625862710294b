package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/httpserver"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/relay"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel/paths"
	"rivulet/fabric/wgkey"
	"rivulet/test/harness/await"
)

func identity(t testing.TB, seed byte) rpc.Identity {
	t.Helper()
	id, err := rpc.NewIdentity(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)), "test")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func newKey(t testing.TB) wgkey.Private {
	t.Helper()
	k, err := wgkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// listen opens a TCP port on loopback whose UDP port is free.
func listen(t testing.TB) net.Listener {
	t.Helper()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if u, err := net.ListenPacket("udp", fmt.Sprintf(":%d", l.Addr().(*net.TCPAddr).Port)); err == nil {
			u.Close()
			return l
		}
		l.Close()
	}
	t.Fatal("no port is free for TCP and UDP")
	return nil
}

// begin runs a broker on the listener; stop ends it.
func begin(t testing.TB, seed byte, l net.Listener, only ...string) (at Address, s *Server, stop func()) {
	t.Helper()
	id := identity(t, seed)
	s = NewServer(id, newKey(t), only, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return Address{ID: id.ID, Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port)}, s, stop
}

func serve(t testing.TB, seed byte) (Address, *Server) {
	t.Helper()
	at, s, _ := begin(t, seed, listen(t))
	return at, s
}

// cluster is a member, as far as a broker sees one.
type cluster struct {
	*Client
	self rpc.Identity

	mu      sync.Mutex
	secret  string
	key     wgkey.Private
	found   map[peer.ID]string // by the source
	problem *rpc.Error
	blob    []byte
	arrived chan net.Conn
}

func newCluster(t testing.TB, seed byte, secret string, brokers ...Address) *cluster {
	t.Helper()
	c := &cluster{self: identity(t, seed), secret: secret, key: newKey(t), found: map[peer.ID]string{}, arrived: make(chan net.Conn, 8)}
	c.Client = NewClient(ClientConfig{
		Self: c.self, Retry: 20 * time.Millisecond, Log: slog.New(slog.DiscardHandler), Changed: func() {},
		Room: func(broker peer.ID) string {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.secret == "" {
				return ""
			}
			return room(c.secret, broker)
		},
		Notes: c,
		Key:   func() wgkey.Private { c.mu.Lock(); defer c.mu.Unlock(); return c.key },
		Addrs: func() []netip.AddrPort { return nil },
		Discovered: func(source string, ev discovery.Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if ev.Kind == discovery.Removed {
				delete(c.found, ev.Entry.ID)
			} else {
				c.found[ev.Entry.ID] = source
			}
		},
		Arrived: func(ctx context.Context, conn net.Conn) { c.arrived <- conn; <-ctx.Done() },
		Problem: func(e *rpc.Error) { c.mu.Lock(); defer c.mu.Unlock(); c.problem = e },
	}, brokers)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func (c *cluster) Note(string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blob, nil
}

func (c *cluster) PutNote(_ string, blob []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blob = blob
	return nil
}

var stretched sync.Map // by secret: a pairing.GroupKey

func room(secret string, broker peer.ID) string {
	key, ok := stretched.Load(secret)
	if !ok {
		key, _ = stretched.LoadOrStore(secret, pairing.NewGroupKey(secret))
	}
	return key.(pairing.GroupKey).Room(broker)
}

func (c *cluster) sees(id peer.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.HasPrefix(c.found[id], "broker/")
}

func (c *cluster) trouble() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problem == nil {
		return ""
	}
	return c.problem.Error()
}

func (c *cluster) awaitReached(t testing.TB) {
	t.Helper()
	await.True(t, 10*time.Second, "the broker is reached", func() bool { st := c.Status(); return len(st) == 1 && st[0].Reached })
}

const (
	ours   = "a long enough secret"
	theirs = "another long secret"
)

// Members of a group find each other, reach each other through the broker, and are forgotten when they go.
func TestMembersMeet(t *testing.T) {
	at, s := serve(t, 9)
	a, b := newCluster(t, 1, ours, at), newCluster(t, 2, ours, at)
	for _, x := range [][2]*cluster{{a, b}, {b, a}} {
		await.True(t, 10*time.Second, "they see each other", func() bool { return x[0].sees(x[1].self.ID) })
	}
	if to := a.To(b.self.ID); len(to) != 1 || to[0] != at {
		t.Fatalf("ways to b: %v", to)
	}
	if got := a.Tunnel(); len(got) != 1 || got[0].PublicKey != s.key.Public() || got[0].UDP[0].Port() != at.Port {
		t.Errorf("the tunnel gets %+v", got)
	}
	conn, err := a.Dial(t.Context(), at, b.self.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	there := <-b.arrived
	defer there.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(there, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q %v", got, err)
	}
	b.Set(nil)
	await.True(t, 10*time.Second, "b is gone at a and at the broker, and does not use it", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !a.sees(b.self.ID) && len(s.members) == 1 && len(b.Tunnel()) == 0 && !b.sees(a.self.ID)
	})
}

// A stranger has no room but its own: it sees nobody, and reaches nobody.
func TestAnotherRoom(t *testing.T) {
	at, s := serve(t, 9)
	a, b, x := newCluster(t, 1, ours, at), newCluster(t, 2, ours, at), newCluster(t, 3, theirs, at)
	x.awaitReached(t)
	await.True(t, 10*time.Second, "a and b see each other", func() bool { return a.sees(b.self.ID) && b.sees(a.self.ID) })
	if _, err := x.Dial(t.Context(), at, b.self.ID); err == nil {
		t.Error("relayed from another room")
	}
	if x.sees(a.self.ID) || a.sees(x.self.ID) {
		t.Error("seen from another room")
	}
	outsider := newCluster(t, 4, "")
	if _, err := outsider.Client.Dial(t.Context(), at, b.self.ID); err == nil {
		t.Error("relayed for a cluster that is in no room")
	}
	// The room is the group's at this broker only, and is not the secret.
	if r := room(ours, at.ID); r == room(ours, x.self.ID) || len(r) != roomLen || strings.Contains(r, ours) {
		t.Errorf("room %q", r)
	}
	// Who is called answers, and nobody in its place.
	s.mu.Lock()
	s.calls["known"] = &call{to: b.self.ID, arrived: make(chan net.Conn, 1)}
	s.mu.Unlock()
	if _, err := x.upgrade(t.Context(), at, callPath+"known"); err == nil {
		t.Error("a call was answered by another than the called")
	}
}

// raw sends one registration.
func raw(t testing.TB, at Address, self rpc.Identity, q registration) (int, error) {
	t.Helper()
	c, err := dial(t.Context(), at)
	if err != nil {
		return 0, err
	}
	t.Cleanup(func() { c.Close() })
	conn := tls.Client(c, rpc.ClientTLS(self, at.ID))
	resp, err := request(conn, bufio.NewReader(conn), http.MethodPost, roomPath, q)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, nil
}

// A registration is refused where it is malformed, and where the WireGuard key is not proved: nobody takes the packets
// of another.
func TestRegistrationsAreChecked(t *testing.T) {
	at, s := serve(t, 9)
	self, key := identity(t, 1), newKey(t)
	good := registration{Room: room(ours, at.ID), WireGuardKey: key.Public().String(), Proof: pairing.Possession(key, s.key.Public(), self.ID, at.ID)}
	for name, change := range map[string]func(*registration){
		"no room":        func(q *registration) { q.Room = "" },
		"a room of text": func(q *registration) { q.Room = strings.Repeat("z", roomLen) },
		"no key":         func(q *registration) { q.WireGuardKey = "" },
		"a weak key":     func(q *registration) { q.WireGuardKey = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" },
		"another's key":  func(q *registration) { q.WireGuardKey = newKey(t).Public().String() },
		"another's proof": func(q *registration) {
			q.Proof = pairing.Possession(key, s.key.Public(), identity(t, 2).ID, at.ID)
		},
		"a proof for another broker": func(q *registration) {
			q.Proof = pairing.Possession(key, s.key.Public(), self.ID, identity(t, 8).ID)
		},
		"too many addresses": func(q *registration) { q.Addrs = make([]netip.AddrPort, maxAddrs+1) },
		"too long":           func(q *registration) { q.Room = strings.Repeat("0", rpc.MaxBody) },
	} {
		q := good
		change(&q)
		if _, err := raw(t, at, self, q); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := raw(t, at, self, good); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if other := identity(t, 2); true { // the same key under another identity, with its proof
		good.Proof = pairing.Possession(key, s.key.Public(), other.ID, at.ID)
		if _, err := raw(t, at, other, good); err == nil {
			t.Error("a key has two members")
		}
	}
}

// One address holds its share of the places, whatever identities it makes up, and a flood keeps no member out.
func TestMembersFromOneAddressAreBounded(t *testing.T) {
	at, s := serve(t, 9)
	a := newCluster(t, 1, ours, at)
	a.awaitReached(t)
	for i := range perSource + 20 {
		self, key := identity(t, byte(20+i)), newKey(t)
		raw(t, at, self, registration{Room: fmt.Sprintf("%064x", i), WireGuardKey: key.Public().String(), //nolint:errcheck // refused or not
			Proof: pairing.Possession(key, s.key.Public(), self.ID, at.ID)})
	}
	await.True(t, 10*time.Second, "at most as many as one address has", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.members) <= perSource
	})
	// The flood is from a's own address here; a was there before.
	a.awaitReached(t)
}

// A room holds as many as fit into one list.
func TestARoomIsBounded(t *testing.T) {
	s := NewServer(identity(t, 9), newKey(t), nil, slog.New(slog.DiscardHandler))
	s.packets = &packets{wanted: make(chan struct{}, 1)}
	enter := func(room string, n int) bool {
		id := peer.ID(fmt.Sprintf("%032d", n))
		return s.enter(&registered{member: member{ID: id}, room: room, key: newKey(t).Public(), changed: make(chan struct{}, 1), end: func() {}})
	}
	for n := range maxRoom {
		if !enter("r", n) {
			t.Fatalf("refused at %d", n)
		}
	}
	if enter("r", maxRoom) {
		t.Error("more than a room holds")
	}
	if !enter("r", 0) {
		t.Error("a member cannot register again")
	}
	if !enter("q", maxRoom) {
		t.Error("another room is full too")
	}
}

// colliding returns two keys with the same tag.
func colliding(t *testing.T) (a, b wgkey.Public) {
	t.Helper()
	seen := map[[4]byte]wgkey.Public{}
	for range 2_000_000 {
		var raw [32]byte
		rand.Read(raw[:])
		k, err := wgkey.Parse(base64.StdEncoding.EncodeToString(raw[:]))
		if err != nil {
			continue
		}
		tag := paths.Tag(k.Bytes())
		if other, ok := seen[tag]; ok {
			return other, k
		}
		seen[tag] = k
	}
	t.Fatal("no two keys have the same tag")
	return
}

// Whoever makes a key with the tag of a member, in a room of its own, keeps that member neither out nor its packets from
// it: both are served, each in its room. A key has one member, and so has a tag in a room.
func TestATagIsOfARoom(t *testing.T) {
	s := NewServer(identity(t, 9), newKey(t), nil, slog.New(slog.DiscardHandler))
	s.packets = &packets{wanted: make(chan struct{}, 1)}
	one, other := colliding(t)
	enter := func(room string, n int, key wgkey.Public) (*registered, bool) {
		m := &registered{member: member{ID: peer.ID(fmt.Sprintf("%032d", n))}, room: room, key: key, changed: make(chan struct{}, 1), end: func() {}}
		return m, s.enter(m)
	}
	attacker, ok := enter("theirs", 1, other)
	victim, again := enter("ours", 2, one)
	if !ok || !again || len(s.packets.peers) != 2 {
		t.Fatalf("%v %v, %d are served", ok, again, len(s.packets.peers))
	}
	if _, ok := enter("ours", 3, other); ok {
		t.Error("a room has a tag twice, or a key has two members")
	}
	if _, ok := enter("third", 4, one); ok {
		t.Error("a key has two members")
	}
	s.leave(victim)
	if _, ok := enter("theirs", 1, attacker.key); !ok || len(s.packets.peers) != 2 {
		t.Errorf("%v, %d are served: one that has left is forgotten because of another room", ok, len(s.packets.peers))
	}
}

// Whoever comes and goes without pause, by ever new names, takes no place of members that have disconnected for a moment
// elsewhere.
func TestWhoComesAndGoesTakesItsOwnPlaces(t *testing.T) {
	synctest.Test(t, whoComesAndGoes) // places are for a time, which does not pass meanwhile
}

func whoComesAndGoes(t *testing.T) {
	s := NewServer(identity(t, 9), newKey(t), nil, slog.New(slog.DiscardHandler))
	s.packets = &packets{wanted: make(chan struct{}, 1)}
	visit := func(n int, source string) *registered {
		m := &registered{member: member{ID: peer.ID(fmt.Sprintf("%032d", n))}, room: fmt.Sprint(n), source: source, key: newKey(t).Public(), changed: make(chan struct{}, 1), end: func() {}}
		if !s.enter(m) {
			t.Fatal("refused")
		}
		s.leave(m)
		return m
	}
	honest := visit(0, "192.0.2.1")
	for n := range 2 * maxMembers {
		visit(1+n, fmt.Sprint("192.0.2.", 100+n%20))
	}
	if !slices.Contains(s.left, honest) {
		t.Error("the member is forgotten")
	}
	if len(s.left) > maxMembers {
		t.Errorf("%d linger", len(s.left))
	}
	for n := range 2 * perSource {
		visit(5000+n, "192.0.2.99")
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.left), func(m *registered) bool { return m.source != "192.0.2.99" })); n > perSource {
		t.Errorf("%d of one address linger", n)
	}
}

// The broker goes and comes back: a problem with a cure meanwhile, and the members are back by themselves.
func TestABrokerThatComesBack(t *testing.T) {
	l := listen(t)
	addr := l.Addr().String()
	at, _, stop := begin(t, 9, l)
	a, b := newCluster(t, 1, ours, at), newCluster(t, 2, ours, at)
	await.True(t, 10*time.Second, "a sees b", func() bool { return a.sees(b.self.ID) })
	stop()
	await.True(t, 10*time.Second, "a problem", func() bool { return strings.Contains(a.trouble(), "rivulet broker") })
	if a.sees(b.self.ID) || len(a.To(b.self.ID)) != 0 {
		t.Error("a still has what the broker has told")
	}
	if len(a.Tunnel()) != 1 {
		t.Error("the tunnel loses the broker while it is away: a path by it would end for good")
	}
	await.True(t, 10*time.Second, "the port is free again", func() bool {
		var err error
		l, err = net.Listen("tcp", addr)
		return err == nil
	})
	begin(t, 9, l)
	await.True(t, 10*time.Second, "a sees b again", func() bool { return a.sees(b.self.ID) && a.trouble() == "" })
}

// Another key registers anew, another secret is another room, and no secret is no registration.
func TestChangesRegisterAnew(t *testing.T) {
	at, s := serve(t, 9)
	a := newCluster(t, 1, ours, at)
	a.awaitReached(t)
	has := func() *registered {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.members[a.self.ID]
	}
	change := func(what string, set func(), ok func(*registered) bool) {
		t.Helper()
		a.mu.Lock()
		set()
		a.mu.Unlock()
		a.Again()
		await.True(t, 10*time.Second, what, func() bool { return ok(has()) })
	}
	next := newKey(t)
	change("the next key", func() { a.key = next }, func(m *registered) bool { return m != nil && m.key == next.Public() })
	change("the other room", func() { a.secret = theirs }, func(m *registered) bool { return m != nil && m.room == room(theirs, at.ID) })
	change("no room", func() { a.secret = "" }, func(m *registered) bool { return m == nil })
	if len(a.Tunnel()) != 0 {
		t.Error("the tunnel uses a broker outside of a group")
	}
}

// held counts the calls that a liar does not answer.
var held atomic.Int32

// An owner's broker serves the groups that the owner names, and the others are told how to be among them.
func TestOnlyNamedGroups(t *testing.T) {
	id := identity(t, 9).ID
	at, _, _ := begin(t, 9, listen(t), Fingerprint(room(ours, id)))
	a, x := newCluster(t, 1, ours, at), newCluster(t, 2, theirs, at)
	a.awaitReached(t)
	await.True(t, 10*time.Second, "the other group is refused", func() bool { return strings.Contains(x.trouble(), "--only "+Fingerprint(room(theirs, id))) })
	if f := Fingerprint(room(ours, id)); strings.Contains(room(ours, id), f) {
		t.Errorf("the fingerprint %s is a part of the room", f)
	}
}

// A supervisor that restarts interrupts no path: the tunnel has the broker from the first moment, and the broker relays
// on meanwhile. A member that is elsewhere by then has no place in the old room.
func TestARestartInterruptsNoPath(t *testing.T) {
	at, s := serve(t, 9)
	a := newCluster(t, 1, ours, at)
	a.awaitReached(t)
	again := NewClient(a.cfg, []Address{at})
	if got := again.Tunnel(); len(got) != 1 || got[0].PublicKey != s.key.Public() {
		t.Errorf("after a restart the tunnel has %+v", got)
	}
	if got := NewClient(a.cfg, nil).Tunnel(); len(got) != 0 {
		t.Errorf("the tunnel has a broker that is not configured: %+v", got)
	}
	served := func() (rooms []string) {
		s.packets.mu.Lock()
		defer s.packets.mu.Unlock()
		for _, p := range s.packets.peers {
			rooms = append(rooms, p.Room)
		}
		return rooms
	}
	a.Set(nil)
	await.True(t, 10*time.Second, "a is no member", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.members) == 0 })
	if got := served(); !slices.Equal(got, []string{room(ours, at.ID)}) {
		t.Errorf("packets are relayed in %v, want a's room a little longer", got)
	}
	a.mu.Lock()
	a.secret = theirs
	a.mu.Unlock()
	a.Set([]Address{at})
	a.awaitReached(t)
	if got := served(); !slices.Equal(got, []string{room(theirs, at.ID)}) {
		t.Errorf("packets are relayed in %v, want the other room alone", got)
	}
	a.Set(nil)
	await.True(t, 10*time.Second, "a is gone", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.left) == 1 })
	s.mu.Lock()
	me := s.left[0]
	s.mu.Unlock()
	s.forget(me)
	if got := served(); len(got) != 0 {
		t.Errorf("packets are relayed in %v after that", got)
	}
}

// liar is a broker that sends what it likes.
func liar(t testing.TB, seed byte, key string, text string) Address {
	t.Helper()
	id := identity(t, seed)
	l := listen(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+helloPath, func(w http.ResponseWriter, _ *http.Request) { rpc.Write(w, http.StatusOK, hello{WireGuardKey: key}) })
	mux.HandleFunc("POST "+roomPath, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusOK)
		io.WriteString(w, text)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /v1/", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != callPath+"x" {
			t.Errorf("called at %s", r.URL.Path)
		}
		held.Add(1)
		<-r.Context().Done()
	})
	server := rpc.NewServer(httpserver.Broker, id, mux, slog.New(slog.DiscardHandler))
	go server.ServeTLS(l, "", "")
	t.Cleanup(func() { server.Close() })
	return Address{ID: id.ID, Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port)}
}

// A broker that lies denies its service, and that is all.
func TestABrokerThatLies(t *testing.T) {
	key := newKey(t).Public().String()
	id := func(n byte) peer.ID { return identity(t, n).ID }
	t.Run("another identity", func(t *testing.T) {
		at := liar(t, 9, key, "")
		at.ID = id(8)
		a := newCluster(t, 1, ours, at)
		await.True(t, 10*time.Second, "the problem names the other", func() bool { return strings.Contains(a.trouble(), string(id(9))) })
		if len(a.Tunnel()) != 0 {
			t.Error("it is used all the same")
		}
	})
	for name, at := range map[string]Address{
		"no key":           liar(t, 9, "", ""),
		"a weak key":       liar(t, 9, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", ""),
		"no list":          liar(t, 9, key, "<html>\n"),
		"an endless line":  liar(t, 9, key, strings.Repeat("x", 2*rpc.MaxBody)),
		"too many members": liar(t, 9, key, `{"members":[`+strings.Repeat(`{"id":"a"},`, maxRoom)+"{}]}\n"),
	} {
		t.Run(name, func(t *testing.T) {
			a := newCluster(t, 1, ours, at)
			await.True(t, 10*time.Second, "a problem, or another try", func() bool { return a.trouble() != "" || a.retried() })
		})
	}
	t.Run("forged members", func(t *testing.T) {
		real := id(2)
		at := liar(t, 9, key, fmt.Sprintf(`{"members":[{"id":"not one"},{"id":%q},{"id":%q,"addrs":["127.0.0.1:6443","10.0.0.7:22","8.8.8.8:22","8.8.8.8:7442","8.8.4.4:7442","8.8.8.1:7442","8.8.8.2:7442","8.8.8.3:7442"]}]}`+"\n", id(1), real))
		a := newCluster(t, 1, ours, at)
		await.True(t, 10*time.Second, "the one that may be", func() bool { return a.sees(real) })
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.found) != 1 {
			t.Errorf("found %v, want none that cannot be, and not itself", a.found)
		}
	})
	t.Run("addresses of the site", func(t *testing.T) {
		got := public([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7442"), netip.MustParseAddrPort("10.0.0.7:7442"), netip.MustParseAddrPort("8.8.8.8:22"), netip.MustParseAddrPort("8.8.8.8:7442")})
		if !slices.Equal(got, []netip.AddrPort{netip.MustParseAddrPort("8.8.8.8:7442")}) {
			t.Errorf("%v would be dialled", got)
		}
	})
	t.Run("calls without end", func(t *testing.T) {
		held.Store(0)
		a := newCluster(t, 1, ours, liar(t, 9, key, `{"call":"../../v1/peering?x"}`+"\n"+strings.Repeat(`{"call":"x"}`+"\n", 30)+fmt.Sprintf(`{"members":[{"id":%q}]}`, id(2))+"\n"))
		await.True(t, 10*time.Second, "the list behind the calls", func() bool { return a.sees(id(2)) })
		if n := held.Load(); n == 0 || n > relay.PerPeer {
			t.Errorf("%d calls are followed at once, want %d at most", n, relay.PerPeer)
		}
	})
}

// retried reports whether the broker was tried more than once.
func (c *cluster) retried() bool {
	c.Client.mu.Lock()
	defer c.Client.mu.Unlock()
	for _, s := range c.sessions {
		if s.failed > 0 {
			return true
		}
	}
	return false
}

func TestAddresses(t *testing.T) {
	id := strings.Repeat("a", 32)
	for text, want := range map[string]Address{
		id + "@broker.example":       {peer.ID(id), "broker.example", 7442},
		id + "@broker.example:443":   {peer.ID(id), "broker.example", 443},
		id + "@192.0.2.7:7442":       {peer.ID(id), "192.0.2.7", 7442},
		id + "@[2001:db8::1]:7442":   {peer.ID(id), "2001:db8::1", 7442},
		id + "@[2001:db8::1]":        {peer.ID(id), "2001:db8::1", 7442},
		"":                           {},
		"broker.example":             {},
		id + "@":                     {},
		id + "@:7442":                {},
		id + "@broker.example:0":     {},
		id + "@broker.example:99999": {},
		id + "@https://broker/":      {},
		"short@broker.example":       {},
		id + "@a b":                  {},
	} {
		got, err := ParseAddress(text)
		if got != want || (err == nil) != (want != Address{}) {
			t.Errorf("%q: %+v %v", text, got, err)
		}
		if err != nil {
			continue
		}
		if again, err := ParseAddress(got.String()); err != nil || again != got {
			t.Errorf("%s is not read back: %v", got, err)
		}
	}
}

// The metrics count members, rooms and packets, and name nobody.
func TestMetrics(t *testing.T) {
	at, s := serve(t, 9)
	a, b := newCluster(t, 1, ours, at), newCluster(t, 2, ours, at)
	await.True(t, 10*time.Second, "they see each other", func() bool { return a.sees(b.self.ID) && b.sees(a.self.ID) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.ServeMetrics(t.Context(), l) //nolint:errcheck // it ends with the test
	resp, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	for _, want := range []string{"\nrivulet_broker_members 2\n", "\nrivulet_broker_rooms 1\n", "\nrivulet_broker_exchanges 0\n", "\nrivulet_broker_refused_packets_total 0\n"} {
		if !strings.Contains(string(raw), want) || err != nil {
			t.Errorf("no %q: %v\n%s", want, err, raw)
		}
	}
	if strings.Contains(string(raw), string(a.self.ID)) || strings.Contains(string(raw), room(ours, at.ID)) {
		t.Error("it names a member or a room")
	}
}
