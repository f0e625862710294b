package pairing

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

func TestJudge(t *testing.T) {
	link := func(f Facts) Facts { f.OnLink = true; return f }
	for _, tt := range []struct {
		name      string
		f         Facts
		how, code string
	}{
		{"lan, on the link", Facts{Mode: ModeLAN, OnLink: true}, peer.TrustLAN, ""},
		{"lan, from elsewhere", Facts{Mode: ModeLAN}, "", "not-on-link"},
		{"lan, another of that name", Facts{Mode: ModeLAN, OnLink: true, NameOf: "x"}, peer.TrustLAN, ""},
		{"group, proved", Facts{Mode: ModeGroup, Proved: RightProof}, peer.TrustGroup, ""},
		{"group, nothing shown", link(Facts{Mode: ModeGroup}), "", "no-proof"},
		{"group, another secret", link(Facts{Mode: ModeGroup, Proved: WrongProof}), "", "wrong-proof"},
		{"group, proved, another of that name", Facts{Mode: ModeGroup, Proved: RightProof, NameOf: "x"}, "", "name-taken"},
		{"ask", link(Facts{Mode: ModeAsk}), "", "pending"},
		{"ask, with somebody else's proof", link(Facts{Mode: ModeAsk, Proved: RightProof}), "", "pending"},
		{"ask, another of that name", Facts{Mode: ModeAsk, NameOf: "x"}, "", "name-taken"},
		{"closed", link(Facts{Mode: ModeClosed, Proved: RightProof, Why: "a test"}), "", "closed"},
		{"no mode at all", link(Facts{Proved: RightProof}), "", "closed"},
		{"a word, in every mode", Facts{Mode: ModeClosed, Approved: peer.TrustApproved}, peer.TrustApproved, ""},
		{"a word counts more than a name", Facts{Mode: ModeGroup, Approved: peer.TrustApproved, NameOf: "x"}, peer.TrustApproved, ""},
		{"a no", link(Facts{Mode: ModeLAN, Denied: true}), "", "denied"},
		{"a no to one that proves", Facts{Mode: ModeGroup, Denied: true, Proved: RightProof}, "", "denied"},
		{"a former peer", link(Facts{Mode: ModeLAN, Denied: true, Was: true}), "", "unpeered"},
		{"a former peer that has ended it itself", link(Facts{Mode: ModeLAN, Was: true}), peer.TrustLAN, ""},
		{"an invite", Facts{Mode: ModeClosed, HasInvite: true}, peer.TrustInvite, ""},
		{"an invite after a no", Facts{Mode: ModeLAN, Denied: true, HasInvite: true}, peer.TrustInvite, ""},
		{"an invite that is used up", link(Facts{Mode: ModeLAN, HasInvite: true, InviteError: errors.New("used")}), "", "invite"},
		{"a word beside one", Facts{Mode: ModeAsk, HasInvite: true, InviteError: errors.New("used"), Approved: peer.TrustInvite}, peer.TrustInvite, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			how, err := Evaluate(tt.f, "it", netip.MustParseAddr("192.0.2.1"))
			var e *rpc.Error
			errors.As(err, &e)
			if how != tt.how || (err == nil) != (tt.code == "") || e != nil && (e.Code != tt.code || e.Cure == "") {
				t.Errorf("%q %+v, want %q or %q", how, e, tt.how, tt.code)
			}
		})
	}
}

// Nobody is trusted without one of the four reasons, whatever else holds.
func TestJudgeNeedsAReason(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Facts{
			Mode:   rapid.SampledFrom([]Mode{ModeLAN, ModeGroup, ModeAsk, ModeClosed, "", "else"}).Draw(t, "mode"),
			Denied: rapid.Bool().Draw(t, "denied"), Was: rapid.Bool().Draw(t, "was"), OnLink: rapid.Bool().Draw(t, "on link"),
			HasInvite: rapid.Bool().Draw(t, "invite"), Proved: Proved(rapid.IntRange(0, 2).Draw(t, "proved")),
			Approved: rapid.SampledFrom([]string{"", peer.TrustApproved}).Draw(t, "approved"), NameOf: peer.ID(rapid.SampledFrom([]string{"", "x"}).Draw(t, "name")),
		}
		if rapid.Bool().Draw(t, "bad") {
			f.InviteError = errors.New("bad")
		}
		how, err := Evaluate(f, "it", netip.Addr{})
		lan := f.Mode == ModeLAN && f.OnLink && !f.Denied && !f.HasInvite
		group := f.Mode == ModeGroup && f.Proved == RightProof && !f.Denied && f.NameOf == "" && !f.HasInvite
		word := f.Approved != ""
		invite := f.HasInvite && f.InviteError == nil
		if (err == nil) != (lan || group || word || invite) || (how == "") != (err != nil) {
			t.Fatalf("%+v: %q %v", f, how, err)
		}
	})
}

// A proof is good for the connection, the direction and the two for whom it was made.
func TestProofs(t *testing.T) {
	key, other := NewGroupKey("correct horse battery"), NewGroupKey("correct horse battery!")
	a, b, c := peer.ID(strings.Repeat("a", 32)), peer.ID(strings.Repeat("b", 32)), peer.ID(strings.Repeat("c", 32))
	here, there := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	proof := key.prove(roleStarter, here, a, b)
	for _, tt := range []struct {
		name     string
		key      *GroupKey
		proof    []byte
		role     string
		binding  []byte
		from, to peer.ID
		want     Proved
	}{
		{"as it was made", &key, proof, roleStarter, here, a, b, RightProof},
		{"none", &key, nil, roleStarter, here, a, b, NoProof},
		{"another secret", &other, proof, roleStarter, here, a, b, WrongProof},
		{"relayed to another connection", &key, proof, roleStarter, there, a, b, WrongProof},
		{"reflected", &key, proof, roleResponder, here, b, a, WrongProof},
		{"as the answer", &key, proof, roleResponder, here, a, b, WrongProof},
		{"by somebody else", &key, proof, roleStarter, here, c, b, WrongProof},
		{"to somebody else", &key, proof, roleStarter, here, a, c, WrongProof},
		{"without a binding", &key, key.prove(roleStarter, nil, a, b), roleStarter, nil, a, b, WrongProof},
		{"cut off", &key, proof[:31], roleStarter, here, a, b, WrongProof},
		{"we have no secret", nil, proof, roleStarter, here, a, b, NoProof},
	} {
		if got := tt.key.verify(tt.proof, tt.role, tt.binding, tt.from, tt.to); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// Whoever calls without the right proof gets to see none of ours.
func TestAnswersProveToFriendsOnly(t *testing.T) {
	key := NewGroupKey("correct horse battery")
	for _, right := range []bool{true, false} {
		a, b := newNode(1), newNode(2)
		b.group = &key
		from := a.sender()
		from.Binding = []byte("this connection")
		m := a.call(b.sender())
		if right {
			m.Proof = key.prove(roleStarter, from.Binding, a.self.ID, b.self.ID)
		} else {
			m.Proof = bytes.Repeat([]byte{7}, 32)
		}
		answer, err := b.Receive(from, m)
		if err != nil {
			t.Fatal(err)
		}
		if (len(answer.Proof) > 0) != right {
			t.Errorf("right %v: a proof of %d bytes in the answer", right, len(answer.Proof))
		}
	}
}

// Who has a group's secret demands proof of strangers, and of no peer: a peer may leave the group.
func TestProofIsDemandedOfStrangers(t *testing.T) {
	key := NewGroupKey("correct horse battery")
	a, b := newNode(1), newNode(2)
	if m := a.call(b.sender()); m.Demands != "" || len(m.Proof) > 0 {
		t.Errorf("without a group: demands %q, a proof of %d bytes", m.Demands, len(m.Proof))
	}
	exchanged(t, a, b)
	a.group = &key
	for to, want := range map[*node]string{b: "", newNode(3): "group"} {
		at := to.sender()
		at.Binding = []byte("this connection")
		if m := a.call(at); m.Demands != want || len(m.Proof) == 0 {
			t.Errorf("of %s it demands %q, want %q; a proof of %d bytes", to.self.Name, m.Demands, want, len(m.Proof))
		}
	}
}

// A peer by lan becomes a member of the group with the proof that a stranger needs, and with nothing else: a proof of
// another connection, direction, cluster or secret, and none, leave it a peer by lan. A member stays one.
func TestPeersByLANBecomeMembers(t *testing.T) {
	secrets := []*GroupKey{nil, {1}, {2}}
	rapid.Check(t, func(t *rapid.T) {
		a, b := newNode(1), newNode(2)
		if _, err := a.Exchange(context.Background(), wire(a, b)); err != nil {
			t.Fatal(err)
		}
		key := map[*node]*GroupKey{}
		refused := map[*node]bool{} // a stranger with these facts would be
		other := map[*node]*node{a: b, b: a}
		for n := range other {
			n.admit = func(s Stranger) (string, error) {
				f := Facts{Mode: ModeLAN, OnLink: true, Proved: s.Proved, Denied: refused[n], Here: n.self.Name}
				if key[n] != nil {
					f.Mode = ModeGroup
				}
				return Evaluate(f, s.Message.Name, s.From.Addr)
			}
		}
		member := map[*node]bool{} // the other one is, by the rule
		var seen [][]byte          // proofs of other connections
		connection := byte(0)
		post := func(from, to *node, tamper func(*Message)) Post {
			connection++
			binding := []byte{connection}
			bound := func(n *node) Sender { s := n.sender(); s.Binding = binding; return s }
			return func(_ context.Context, say func(Sender) Message) (Message, Sender, error) {
				m := say(bound(to))
				seen = append(seen, m.Proof)
				tamper(&m)
				answer, err := to.Receive(bound(from), m)
				seen = append(seen, answer.Proof)
				return answer, bound(to), err
			}
		}
		same := func() bool { return key[a] != nil && key[b] != nil && *key[a] == *key[b] }
		t.Repeat(map[string]func(*rapid.T){
			"a secret": func(t *rapid.T) {
				n := rapid.SampledFrom([]*node{a, b}).Draw(t, "of")
				key[n] = rapid.SampledFrom(secrets).Draw(t, "secret")
				n.group = key[n]
			},
			"a refusal": func(t *rapid.T) {
				refused[rapid.SampledFrom([]*node{a, b}).Draw(t, "by")] = rapid.Bool().Draw(t, "refused")
			},
			"an exchange": func(t *rapid.T) {
				from := rapid.SampledFrom([]*node{a, b}).Draw(t, "from")
				if _, err := from.Exchange(context.Background(), post(from, other[from], func(*Message) {})); err != nil {
					t.Fatal(err)
				}
				for n := range other {
					member[n] = member[n] || same() && !refused[n]
				}
			},
			"a false proof": func(t *rapid.T) {
				from := rapid.SampledFrom([]*node{a, b}).Draw(t, "from")
				forged := append(slices.Clone(seen), nil, bytes.Repeat([]byte{7}, 32), key[other[from]].forOthers(from.self.ID))
				proof := rapid.SampledFrom(forged).Draw(t, "proof")
				from.Exchange(context.Background(), post(from, other[from], func(m *Message) { m.Proof = proof })) //nolint:errcheck // the records count
			},
			"": func(t *rapid.T) {
				for n, o := range other {
					want := map[bool]string{true: peer.TrustGroup, false: peer.TrustLAN}[member[n]]
					if got := n.disk[o.self.ID].Trust; got.How != want || got.At.IsZero() || got.How == peer.TrustGroup && got.Source != "" {
						t.Fatalf("%s has %s as %+v, want %s", n.self.Name, o.self.Name, got, want)
					}
				}
			},
		})
	})
}

// forOthers is a true proof of the key, by a third cluster.
func (k *GroupKey) forOthers(to peer.ID) []byte {
	if k == nil {
		return nil
	}
	return k.prove(roleStarter, []byte{1}, peer.ID(strings.Repeat("z", 32)), to)
}
