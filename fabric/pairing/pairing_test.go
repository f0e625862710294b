package pairing

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

// node is one side with a disk that survives crashes.
type node struct {
	*Party
	self Self
	disk map[peer.ID]peer.Record
	// parted is on disk as well: the numbers of former peers. epoch counts the starts.
	parted map[peer.ID][2]uint64
	epoch  uint64
	boots  uint64 // in place of chance; no disk brings it back
	addr   netip.Addr
	// speaks is the newest version; 0 is ours.
	speaks int
	// keys are the present one and the next.
	keys  [2]wgkey.Private
	group *GroupKey
	// admit replaces the evaluation by lan; claim, which may be nil, knows the owners of keys.
	admit func(Stranger) (string, error)
	claim func(peer.Record) error
	// saves counts down to a crash before the write; below zero it never comes.
	saves int
}

var errCrash = errors.New("power cut")

func keyOf(n byte) wgkey.Private {
	k, err := wgkey.ParsePrivate(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{n}, 32)))
	if err != nil {
		panic(err)
	}
	return k
}

func newNode(n byte) *node {
	s := &node{disk: map[peer.ID]peer.Record{}, parted: map[peer.ID][2]uint64{}, saves: -1, addr: netip.AddrFrom4([4]byte{192, 0, 2, n})}
	s.self = Self{
		ID: peer.ID(strings.Repeat(string('a'+rune(n)), 32)), Name: fmt.Sprintf("node%d", n), Version: "0.1.0", KubeVersion: "v1.35.0+k3s1",
		WireGuardKey: keyOf(n).Public(), TunnelPort: 7442, ControlPort: 7442,
		TunnelAddress: netip.MustParseAddr("10.42.255.254"), PodCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"),
	}
	s.keys[0] = keyOf(n)
	s.boot()
	return s
}

// boot starts the party anew from what is on disk.
func (s *node) boot() {
	s.saves = -1
	s.epoch++
	s.boots++
	s.Party = &Party{Cluster: s, Epoch: s.epoch<<12 | s.boots, Now: func() time.Time { return time.Unix(1e9, 0) }}
}

func (s *node) Self() Self {
	self := s.self
	if self.Group = s.group; s.speaks == 0 { // others are of before there were proofs
		self.Private, self.NextPrivate = s.keys[0], s.keys[1]
	}
	return self
}

func (s *node) Record(id peer.ID) (peer.Record, bool) { r, ok := s.disk[id]; return r, ok }

func (s *node) Parted(id peer.ID) (heard, skip uint64) { return s.parted[id][0], s.parted[id][1] }

func (s *node) Invite(peer.ID) (secret []byte, join bool) { return nil, false }

func (s *node) Admit(x Stranger) (string, error) {
	if s.admit != nil {
		return s.admit(x)
	}
	return Evaluate(Facts{Mode: ModeLAN, OnLink: netip.MustParsePrefix("192.0.2.0/24").Contains(x.From.Addr), Here: s.self.Name}, x.Message.Name, x.From.Addr)
}

func (s *node) Join(_ Stranger, r peer.Record) error { return s.Save(r) }

func (s *node) Save(r peer.Record) error {
	if s.saves == 0 {
		return errCrash
	}
	s.saves--
	s.disk[r.ID] = r
	return nil
}

func (s *node) Claim(r peer.Record) error {
	if s.claim == nil {
		return nil
	}
	return s.claim(r)
}

// Choose takes the first free one; after a reboot a choice that was not kept would differ.
func (s *node) Choose(id peer.ID, previous netip.Prefix) (netip.Prefix, error) {
	taken := []netip.Prefix{s.self.PodCIDR, s.self.ServiceCIDR}
	for _, r := range s.disk {
		if r.ID != id {
			taken = append(taken, r.PeerMappedCIDR)
		}
	}
	free := func(p netip.Prefix) bool { return !slices.ContainsFunc(taken, p.Overlaps) }
	if previous.IsValid() && previous.Bits() == s.self.PodCIDR.Bits() && free(previous) {
		return previous, nil
	}
	for n := 64 + int(s.addr.As4()[3]&0x3f)*8; n < 256; n++ {
		if p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), 0, 0}), s.self.PodCIDR.Bits()); free(p) {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("none left")
}

func (s *node) sender() Sender {
	return Sender{ID: s.self.ID, Certificate: []byte("cert of " + s.self.Name), Addr: s.addr}
}

// wire is a Post to the other node, through JSON as it is on the wire.
func wire(from, to *node) Post {
	return func(_ context.Context, say func(Sender) Message) (Message, Sender, error) {
		got, err := to.decode(from.encode(say(to.sender())))
		if err != nil {
			return Message{}, Sender{}, err
		}
		answer, err := to.Receive(from.sender(), got)
		if err != nil {
			return Message{}, Sender{}, err
		}
		answer, err = from.decode(to.encode(answer))
		return answer, to.sender(), err
	}
}

// decode reads a message as the node's version does.
func (s *node) decode(b []byte) (Message, error) {
	return Decode(b)
}

// encode writes a message as the node's version does.
func (s *node) encode(m Message) []byte {
	switch s.speaks {
	case 3:
		m.Versions = []int{2, 3}
		return bytes.Replace(encode(m), []byte("{"), []byte(`{"new":{"of":"version 3"},`), 1)
	case 4:
		m.Versions = []int{3, 4}
	}
	return encode(m)
}

func encode(m Message) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// agreed fails unless both know of the other what the other holds to be true.
func agreed(t interface{ Fatalf(string, ...any) }, a, b *node) {
	x, y := a.disk[b.self.ID], b.disk[a.self.ID]
	switch {
	case !x.Complete() || !y.Complete() || x.Unconfirmed || y.Unconfirmed:
		t.Fatalf("not complete, or not confirmed: %+v and %+v", x, y)
	case x.LocalMappedCIDR != y.PeerMappedCIDR || y.LocalMappedCIDR != x.PeerMappedCIDR:
		t.Fatalf("%s is seen as %s and believes %s; %s is seen as %s and believes %s", a.self.Name, y.PeerMappedCIDR, x.LocalMappedCIDR, b.self.Name, x.PeerMappedCIDR, y.LocalMappedCIDR)
	case x.WireGuardKey != b.self.WireGuardKey || y.WireGuardKey != a.self.WireGuardKey, x.PeerCIDR != b.self.PodCIDR || y.PeerCIDR != a.self.PodCIDR:
		t.Fatalf("keys or prefixes are wrong: %+v and %+v", x, y)
	case x.Tunnel != netip.AddrPortFrom(b.addr, 7442) || y.Control != netip.AddrPortFrom(a.addr, 7442):
		t.Fatalf("addresses are wrong: %v and %v", x.Tunnel, y.Control)
	}
}

func TestFirstExchangeTakesTwoMessages(t *testing.T) {
	a, b := newNode(1), newNode(2)
	posts := 0
	count := func(p Post) Post {
		return func(ctx context.Context, say func(Sender) Message) (Message, Sender, error) {
			posts++
			return p(ctx, say)
		}
	}
	r, err := a.Exchange(t.Context(), count(wire(a, b)))
	if err != nil || posts != 2 {
		t.Fatalf("%d posts, %v", posts, err)
	}
	agreed(t, a, b)
	if addr, ok := r.Address(); !ok || !r.PeerMappedCIDR.Contains(addr.Addr()) || addr.Port() != 7442 {
		t.Errorf("address in the tunnel: %v", addr)
	}
	if r.Trust.How != peer.TrustLAN || r.Trust.At.IsZero() {
		t.Errorf("trust: %+v", r.Trust)
	}
	before := maps.Clone(a.disk)
	if _, err := b.Exchange(t.Context(), count(wire(b, a))); err != nil {
		t.Fatal(err)
	}
	if posts > 4 || before[b.self.ID].PeerMappedCIDR != a.disk[b.self.ID].PeerMappedCIDR {
		t.Errorf("the second exchange took %d posts or changed a prefix", posts-2)
	}
}

// Both start at any time, messages are lost, doubled and delayed past others,
// either side loses power before any write, changes its address or its whole pod
// CIDR: one undisturbed exchange afterwards and both agree.
func TestDisturbedExchangesHeal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []*node{newNode(1), newNode(2), newNode(3)}
		type late struct {
			to, from *node
			boots    uint64 // of to: its connections end with it
			m        Message
		}
		var delayed []late
		pick := func(label string) (from, to *node) {
			i := rapid.IntRange(0, 2).Draw(t, label)
			return nodes[i], nodes[(i+rapid.IntRange(1, 2).Draw(t, "to"))%3]
		}
		t.Repeat(map[string]func(*rapid.T){
			"exchange": func(t *rapid.T) {
				from, to := pick("from")
				from.saves, to.saves = rapid.IntRange(-1, 2).Draw(t, "crash"), rapid.IntRange(-1, 2).Draw(t, "their crash")
				lost := rapid.IntRange(-1, 3).Draw(t, "lost")
				post := wire(from, to)
				from.Exchange(context.Background(), func(ctx context.Context, say func(Sender) Message) (Message, Sender, error) { //nolint:errcheck // it may fail
					answer, sender, err := post(ctx, func(s Sender) Message {
						m := say(s)
						delayed = append(delayed, late{to, from, to.boots, m})
						return m
					})
					if lost--; lost == 0 {
						return Message{}, Sender{}, errors.New("lost")
					}
					return answer, sender, err
				})
				for _, n := range []*node{from, to} {
					if n.saves == 0 {
						n.boot()
					}
					n.saves = -1
				}
			},
			"an old message arrives": func(t *rapid.T) {
				if len(delayed) == 0 {
					t.Skip("none is delayed")
				}
				d := delayed[rapid.IntRange(0, len(delayed)-1).Draw(t, "which")]
				if d.boots == d.to.boots {
					d.to.Receive(d.from.sender(), d.m) //nolint:errcheck // it may be refused
				}
			},
			"power cut": func(t *rapid.T) { n, _ := pick("who"); n.boot() },
			"a new address": func(t *rapid.T) {
				n, _ := pick("who")
				a := n.addr.As4()
				n.addr = netip.AddrFrom4([4]byte{192, 0, 2, a[3] ^ 0x40})
			},
			"a new pod CIDR": func(t *rapid.T) {
				n, _ := pick("who")
				n.self.PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(42, 90).Draw(t, "cidr")), 0, 0}), 16)
				n.self.TunnelAddress = n.self.PodCIDR.Addr().Next()
				n.disk = map[peer.ID]peer.Record{} // as `rivulet reset` does, but with the identity kept
				n.boot()
			},
			"an old disk comes back": func(t *rapid.T) {
				n, _ := pick("who")
				n.disk, n.epoch = map[peer.ID]peer.Record{}, 0
				n.boot()
				// What it said before it was switched off for that is not on the wire any more.
				delayed = slices.DeleteFunc(delayed, func(d late) bool { return d.from == n || d.to == n })
			},
			"another version": func(t *rapid.T) {
				n, _ := pick("who")
				n.speaks = rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "speaks")
			},
			"a peering ends": func(t *rapid.T) {
				n, other := pick("who")
				if r, ok := n.disk[other.self.ID]; ok {
					e, _ := n.Farewell(other.self.ID, func(heard, skip uint64) error {
						n.parted[r.ID] = [2]uint64{heard, skip}
						delete(n.disk, r.ID)
						return nil
					})
					if rapid.Bool().Draw(t, "told") {
						n.leave(other, e)
					}
				}
			},
			"": func(t *rapid.T) {
				for _, n := range nodes {
					for _, r := range n.disk {
						if !usable(r.PeerMappedCIDR) || r.PeerMappedCIDR.Overlaps(n.self.PodCIDR) {
							t.Fatalf("%s sees %s as %s", n.self.Name, r.Name, r.PeerMappedCIDR)
						}
					}
				}
			},
		})
		for i, a := range nodes {
			b := nodes[(i+1)%3]
			if _, err := a.Exchange(context.Background(), wire(a, b)); err != nil {
				t.Fatalf("undisturbed: %v", err)
			}
			agreed(t, a, b)
		}
		// What was said before comes now, and changes nothing any more.
		for _, d := range delayed {
			if d.boots == d.to.boots {
				d.to.Receive(d.from.sender(), d.m) //nolint:errcheck // it may be refused
			}
		}
		for i, a := range nodes {
			agreed(t, a, nodes[(i+1)%3])
		}
	})
}

// leave tells the other that it is a peer no more.
func (s *node) leave(other *node, e End) {
	other.end(s.sender(), e, func(id peer.ID, heard, skip uint64) error { //nolint:errcheck // it keeps everything
		other.parted[id] = [2]uint64{heard, skip}
		delete(other.disk, id)
		return nil
	})
}

// What a side has told, it has on disk: a power cut between telling and storing
// cannot leave the peer with a prefix that nobody remembers.
func TestStoredBeforeTold(t *testing.T) {
	for crash := range 4 {
		a, b := newNode(1), newNode(2)
		a.saves, b.saves = crash, crash
		post := wire(a, b)
		a.Exchange(t.Context(), func(ctx context.Context, say func(Sender) Message) (Message, Sender, error) { //nolint:errcheck // the crash
			m := say(b.sender())
			if m.SeeYouAs.IsValid() && a.disk[b.self.ID].PeerMappedCIDR != m.SeeYouAs {
				t.Errorf("crash %d: the starter told %s and has stored %s", crash, m.SeeYouAs, a.disk[b.self.ID].PeerMappedCIDR)
			}
			answer, from, err := post(ctx, func(Sender) Message { return m })
			if err == nil && b.disk[a.self.ID].PeerMappedCIDR != answer.SeeYouAs {
				t.Errorf("crash %d: the responder told %s and has stored %s", crash, answer.SeeYouAs, b.disk[a.self.ID].PeerMappedCIDR)
			}
			return answer, from, err
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(m *Message, from *Sender, to *node)
		code   string
	}{
		{"nothing wrong", func(*Message, *Sender, *node) {}, ""},
		{"unknown protocol version", func(m *Message, _ *Sender, _ *node) { m.Versions = []int{99} }, "version"},
		{"no protocol version", func(m *Message, _ *Sender, _ *node) { m.Versions = nil }, "version"},
		{"a newer one that still speaks ours", func(m *Message, _ *Sender, _ *node) { m.Versions = []int{1, 2, 99} }, ""},
		{"only newer ones", func(m *Message, _ *Sender, _ *node) { m.Versions = []int{3, 4} }, "version"},
		{"no number", func(m *Message, _ *Sender, _ *node) { m.Sequence = 0 }, "bad-message"},
		{"a number to count us to the end", func(m *Message, _ *Sender, _ *node) { m.Heard = 1<<64 - 2 }, "bad-message"},
		{"a next key that is the present one", func(m *Message, _ *Sender, _ *node) { m.NextWireGuardKey = m.WireGuardKey }, "bad-message"},
		{"our own WireGuard key as the next one", func(m *Message, _ *Sender, to *node) { m.NextWireGuardKey = to.self.WireGuardKey }, "same-key"},
		{"a group that we are not in", func(m *Message, _ *Sender, _ *node) { m.Demands = "group" }, "no-proof"},
		{"somebody else's ID", func(m *Message, _ *Sender, _ *node) { m.ID = newNode(3).self.ID }, "identity"},
		{"our own identity", func(m *Message, from *Sender, to *node) { m.ID, from.ID = to.self.ID, to.self.ID }, "clone"},
		{"our own WireGuard key", func(m *Message, _ *Sender, to *node) { m.WireGuardKey = to.self.WireGuardKey }, "same-key"},
		{"a stranger from behind a router", func(_ *Message, from *Sender, _ *node) { from.Addr = netip.MustParseAddr("198.51.100.7") }, "not-on-link"},
		{"no key", func(m *Message, _ *Sender, _ *node) { m.WireGuardKey = wgkey.Public{} }, "bad-message"},
		{"a name with a line break", func(m *Message, _ *Sender, _ *node) { m.Name = "a\nb" }, "bad-message"},
		{"a pod CIDR with host bits", func(m *Message, _ *Sender, _ *node) { m.PodCIDR = netip.MustParsePrefix("10.42.1.0/16") }, "bad-message"},
		{"a tunnel address outside", func(m *Message, _ *Sender, _ *node) { m.TunnelAddress = netip.MustParseAddr("10.99.0.1") }, "bad-message"},
		{"everything as pod CIDR", func(m *Message, _ *Sender, _ *node) { m.PodCIDR = netip.MustParsePrefix("0.0.0.0/0") }, "bad-message"},
		{"a prefix of another size for us", func(m *Message, _ *Sender, _ *node) { m.SeeYouAs = netip.MustParsePrefix("10.9.9.0/24") }, "prefix"},
		{"no port", func(m *Message, _ *Sender, _ *node) { m.TunnelPort = 0 }, "bad-message"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newNode(1), newNode(2)
			m, from := a.call(b.sender()), a.sender()
			tt.change(&m, &from, b)
			got, err := Decode(encode(m))
			if err == nil {
				_, err = b.Receive(from, got)
			}
			var e *rpc.Error
			switch {
			case tt.code == "" && err != nil:
				t.Fatalf("refused: %v", err)
			case tt.code != "" && (!errors.As(err, &e) || e.Code != tt.code || e.Cure == "" || !Refused(err)):
				t.Fatalf("err = %#v, want code %q and a cure", err, tt.code)
			case tt.code != "" && len(b.disk) > 0:
				t.Errorf("a refused message left a record: %v", b.disk)
			}
		})
	}
}

// A pinned peer may come from anywhere: the campus has routers.
func TestPinnedPeerMayRoam(t *testing.T) {
	a, b := newNode(1), newNode(2)
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil {
		t.Fatal(err)
	}
	a.addr = netip.MustParseAddr("198.51.100.7")
	if _, err := a.Exchange(t.Context(), wire(a, b)); err != nil {
		t.Fatal(err)
	}
	agreed(t, a, b)
}

func TestPace(t *testing.T) {
	start := time.Unix(1e9, 0)
	var p Pace
	if _, due := p.Next(); due {
		t.Error("the zero Pace is due")
	}
	p.Found(start, false)
	if next, _ := p.Next(); next != start.Add(Grace) {
		t.Errorf("the side that does not start is due at %v", next)
	}
	p.Found(start, true)
	if next, _ := p.Next(); next != start {
		t.Errorf("the side that starts is due at %v", next)
	}
	for _, tt := range []struct {
		refused bool
		limit   time.Duration
	}{{false, 20 * time.Second}, {true, time.Minute}} {
		p, now, want, waits := Pace{}, start, time.Second, map[time.Duration]bool{}
		p.Found(now, true)
		for range 40 {
			p.Failed(now, tt.refused)
			next, due := p.Next()
			wait := next.Sub(now)
			if !due || wait > want || wait < want*3/4 {
				t.Fatalf("refused %v: waits %v, want %v less a quarter at most", tt.refused, wait, want)
			}
			now, want = next, min(2*want, tt.limit)
			waits[wait] = true
		}
		if len(waits) < 20 {
			t.Errorf("refused %v: only %d of 40 waits differ: devices that lost power together try together", tt.refused, len(waits))
		}
		p.Found(now, true)
		if next, _ := p.Next(); next != now {
			t.Errorf("found again, it still waits until %v", next)
		}
	}
}

func FuzzDecode(f *testing.F) {
	a := newNode(1)
	f.Add(encode(a.call(Sender{})))
	f.Add([]byte(`{"versions":[99],"id":7}`))
	f.Add([]byte(`{"versions":[1]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := Decode(body)
		if err != nil {
			var e *rpc.Error
			if !errors.As(err, &e) || e.Code == "" || e.Message == "" || e.Cure == "" {
				t.Fatalf("an error without code or cure: %#v", err)
			}
			return
		}
		again, err := Decode(encode(m))
		if err != nil || !bytes.Equal(encode(m), encode(again)) {
			t.Fatalf("%+v comes back as %+v, %v", m, again, err)
		}
		b := newNode(2)
		if _, err := b.Receive(Sender{ID: m.ID, Addr: a.addr}, m); err == nil && len(b.disk) != 1 {
			t.Fatal("accepted and not stored")
		}
	})
}
