package trust

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/peer"
)

type notes struct {
	blob []byte
	full bool
}

func (n *notes) Note(string) ([]byte, error) { return n.blob, nil }
func (n *notes) PutNote(_ string, b []byte) error {
	if n.full {
		return errors.New("no space left on device")
	}
	n.blob = b
	return nil
}

func open(t interface{ Fatal(...any) }, n *notes) *Store {
	b, err := Open(n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func id(n int) peer.ID {
	return peer.ID(strings.Repeat(string(rune('a'+n%26)), 31) + string(rune('a'+n/26%26)))
}

var begin = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// What the book has said yes to, it still knows after a power cut at any moment; of
// what the disk refused, it knows nothing.
func TestTheBookSurvives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &notes{}
		b := open(t, n)
		yes, no := map[peer.ID]bool{}, map[peer.ID]bool{}
		last := b.Epoch()
		t.Repeat(map[string]func(*rapid.T){
			"yes": func(t *rapid.T) {
				x := id(rapid.IntRange(0, 5).Draw(t, "who"))
				if b.Approve(x, peer.TrustApproved, begin) == nil {
					yes[x], no[x] = true, false
				}
			},
			"no": func(t *rapid.T) {
				x := id(rapid.IntRange(0, 5).Draw(t, "who"))
				if b.Revoke(Revocation{ID: x, Denied: true}) == nil {
					yes[x], no[x] = false, true
				}
			},
			"a peer": func(t *rapid.T) {
				x := id(rapid.IntRange(0, 5).Draw(t, "who"))
				if b.Rejoin(x) == nil {
					no[x] = false
				}
				if b.Met(x) == nil {
					yes[x] = false
				}
			},
			"disk": func(t *rapid.T) { n.full = rapid.Bool().Draw(t, "full") },
			"power cut": func(t *rapid.T) {
				n.full = false
				b = open(t, n)
				if b.Epoch() <= last {
					t.Fatalf("epoch %d after %d", b.Epoch(), last)
				}
				last = b.Epoch()
			},
			"": func(t *rapid.T) {
				for i := range 6 {
					_, y := b.Approved(id(i))
					p, _ := b.Revocation(id(i))
					if y != yes[id(i)] || p.Denied != no[id(i)] {
						t.Fatalf("%s: yes %v, want %v; no %v, want %v", id(i), y, yes[id(i)], p.Denied, no[id(i)])
					}
				}
			},
		})
	})
}

func TestTheBookIsBounded(t *testing.T) {
	n := &notes{}
	b := open(t, n)
	for i := range 600 {
		if err := b.Revoke(Revocation{ID: id(i), Denied: true}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(b.Revocations()); got != maxEntries {
		t.Errorf("%d partings", got)
	}
	if _, ok := b.Revocation(id(599)); !ok {
		t.Error("the youngest is forgotten")
	}
	if len(n.blob) > 64<<10 {
		t.Errorf("the note has %d bytes", len(n.blob))
	}
	if _, err := Open(&notes{blob: []byte("{")}); err == nil || !strings.Contains(err.Error(), "; restore") {
		t.Errorf("a note that cannot be read: %v", err)
	}
}

// A parting keeps the numbers of the peer, however often it is written over.
func TestPartingsKeepNumbers(t *testing.T) {
	b := open(t, &notes{})
	if err := errors.Join(b.Revoke(Revocation{ID: id(1), WasPeer: true, Heard: 9, Skip: 4}), b.Revoke(Revocation{ID: id(1), Denied: true})); err != nil {
		t.Fatal(err)
	}
	if p, _ := b.Revocation(id(1)); p.Heard != 9 || p.Skip != 4 || !p.WasPeer || !p.Denied {
		t.Errorf("%+v", p)
	}
	if err := b.Approve(id(1), peer.TrustApproved, begin); err != nil {
		t.Fatal(err)
	}
	if p, ok := b.Revocation(id(1)); !ok || p.Denied || p.Heard != 9 {
		t.Errorf("after a yes: %+v", p)
	}
}

// Any number of clusters come and go; a person's no is not forgotten for them.
func TestANoOutlivesAFlood(t *testing.T) {
	b := open(t, &notes{})
	if err := b.Revoke(Revocation{ID: id(1), Denied: true}); err != nil {
		t.Fatal(err)
	}
	for n := range 2 * maxEntries {
		if err := b.Revoke(Revocation{ID: id(2 + n), WasPeer: true, ByPeer: true}); err != nil {
			t.Fatal(err)
		}
	}
	if p, ok := b.Revocation(id(1)); !ok || !p.Denied {
		t.Error("the no is forgotten")
	}
	if all := b.Revocations(); len(all) != maxEntries || all[len(all)-1].ID != id(1+2*maxEntries) {
		t.Errorf("%d partings", len(all))
	}
	for n := range maxEntries {
		if err := b.Revoke(Revocation{ID: id(10_000 + n), Denied: true}); err != nil {
			t.Fatal(err)
		}
	}
	if all := b.Revocations(); len(all) != maxEntries {
		t.Errorf("%d partings", len(all))
	}
}

func TestInvites(t *testing.T) {
	n := &notes{}
	b := open(t, n)
	alice, bob := id(1), id(2)
	i, secret, err := b.NewInvite(begin, InviteLife, false)
	if err != nil || len(secret) != 16 || i.Expires.Sub(begin) != 10*time.Minute {
		t.Fatalf("%+v %v", i, err)
	}
	if strings.Contains(string(n.blob), string(secret)) || strings.Contains(string(n.blob), fmt.Sprintf("%x", secret)) {
		t.Error("the secret is on disk")
	}
	revoked, revokedSecret, _ := b.NewInvite(begin, InviteLife, false)
	if i, err := b.RevokeInvite(revoked.ID); err != nil || i.UsedBy != "" || !i.Revoked {
		t.Fatalf("%+v %v", i, err)
	}
	_, late, _ := b.NewInvite(begin, InviteLife, false)
	b = open(t, n) // it survives a restart
	minute := begin.Add(time.Minute)
	for _, tt := range []struct {
		name   string
		secret []byte
		by     peer.ID
		at     time.Time
		want   error
	}{
		{"unknown", make([]byte, 16), alice, minute, ErrInviteUnknown},
		{"good", secret, alice, minute, nil},
		{"again, by the same", secret, alice, minute, nil},
		{"again, by another", secret, bob, minute, ErrInviteUsed},
		{"revoked", revokedSecret, alice, minute, ErrInviteRevoked},
		{"expired", late, alice, begin.Add(10 * time.Minute), ErrInviteExpired},
		{"before it was made", late, alice, begin.Add(-time.Hour), ErrInviteExpired},
		{"again, too late", secret, alice, begin.Add(time.Hour), ErrInviteExpired},
		{"nothing", nil, alice, minute, ErrInviteUnknown},
	} {
		if err := b.Redeem(tt.secret, tt.by, tt.at, false); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	var states []string
	for _, i := range b.Invites() {
		states = append(states, i.State(begin.Add(time.Hour)))
	}
	if !slices.Equal(states, []string{"used", "revoked", "expired"}) {
		t.Errorf("states: %v", states)
	}
	if _, err := b.RevokeInvite("nothing"); err == nil || !strings.Contains(err.Error(), "; see") {
		t.Errorf("one that is none was revoked: %v", err)
	}
	if _, _, err := b.NewInvite(begin.Add(48*time.Hour), InviteLife, false); err != nil {
		t.Fatal(err)
	}
	if n := len(b.Invites()); n != 1 {
		t.Errorf("%d invites are remembered after two days", n)
	}
}

// Two clusters with one invite at the same moment: one gets in.
func TestOneInviteOneCluster(t *testing.T) {
	const clusters = 20
	one := func(how string, redeem func(b *Store, secret []byte, by peer.ID) error) {
		b := open(t, &notes{})
		_, secret, _ := b.NewInvite(begin, InviteLife, false)
		results := make(chan error, clusters)
		for i := range clusters {
			go func() { results <- redeem(b, secret, id(i)) }()
		}
		in := 0
		for range clusters {
			if <-results == nil {
				in++
			}
		}
		if in != 1 {
			t.Errorf("%s: %d got in", how, in)
		}
	}
	one("at the same time", func(b *Store, secret []byte, by peer.ID) error { return b.Redeem(secret, by, begin, false) })
	one("all have seen it unused", func(b *Store, secret []byte, by peer.ID) error {
		return cmp.Or(b.Check(secret, by, begin, false), b.Redeem(secret, by, begin, false))
	})
}

func TestCodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Code{ID: id(rapid.IntRange(0, 600).Draw(t, "id")), Secret: rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "secret")}
		for range rapid.IntRange(0, maxAddrs).Draw(t, "n") {
			b := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
			a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), b, b).Draw(t, "addr"))
			c.Addrs = append(c.Addrs, netip.AddrPortFrom(a.Unmap(), rapid.Uint16().Draw(t, "port")))
		}
		for _, text := range []string{c.String(), c.URL(), strings.ToLower(c.URL()), " " + c.String()[:9] + "- \n" + c.String()[9:] + "\n"} {
			got, err := ParseCode(text)
			if err != nil || got.String() != c.String() || !slices.Equal(got.Addrs, c.Addrs) {
				t.Fatalf("%q: %+v %v", text, got, err)
			}
		}
		// One letter wrong or gone is noticed.
		s := []byte(c.String())
		at := rapid.IntRange(0, len(s)-2).Draw(t, "at")
		if s[at] = 'A'; string(s) == c.String() {
			s[at] = 'B'
		}
		if got, err := ParseCode(string(s)); err == nil {
			t.Fatalf("with another letter: %+v", got)
		}
		if got, err := ParseCode(c.String()[:at]); err == nil {
			t.Fatalf("cut off: %+v", got)
		}
	})
}

// An invite that somebody has made up, with a right checksum, is refused whatever is missing of it, and makes nothing end.
func TestCodesThatSomebodyMadeUp(t *testing.T) {
	whole, err := codeText.DecodeString(Code{ID: id(1), Secret: make([]byte, SecretLen), Addrs: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7442")}}.String())
	if err != nil {
		t.Fatal(err)
	}
	sealed := func(body []byte) string {
		return codeText.EncodeToString(binary.BigEndian.AppendUint32(slices.Clone(body), crc32.ChecksumIEEE(body)))
	}
	body := whole[:len(whole)-4]
	if _, err := ParseCode(sealed(body)); err != nil {
		t.Fatal(err)
	}
	for n := range body {
		if c, err := ParseCode(sealed(body[:n])); err == nil {
			t.Errorf("%d bytes of %d: %+v", n, len(body), c)
		}
	}
	for at, why := range map[int]string{0: "newer kind", 38: "cut off"} {
		changed := slices.Clone(body)
		changed[at] = 200
		if _, err := ParseCode(sealed(changed)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	if _, err := ParseCode(sealed(append(slices.Clone(body), 0))); err == nil {
		t.Error("more than belongs to one")
	}
	for _, c := range []Code{{ID: "a", Secret: make([]byte, SecretLen)}, {ID: id(1), Secret: make([]byte, SecretLen-1)}, {}} {
		if c.String() != "" {
			t.Errorf("%+v: %s", c, c)
		}
	}
}

func FuzzParseCode(f *testing.F) {
	f.Add(Code{ID: id(1), Secret: make([]byte, 16), Addrs: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7442")}}.URL())
	f.Add("rivulet://invite/")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCode(text)
		if err != nil {
			if !strings.Contains(err.Error(), "; ") {
				t.Fatalf("no cure: %v", err)
			}
			return
		}
		if again, err := ParseCode(c.String()); err != nil || again.String() != c.String() {
			t.Fatalf("%+v comes back as %+v, %v", c, again, err)
		}
	})
}

// Who revokes an invite is told whether it was used. In either case nobody uses it any more, not its user either.
func TestAnInviteIsUsedOrRevoked(t *testing.T) {
	for range 500 {
		b := open(t, &notes{})
		i, secret, _ := b.NewInvite(begin, InviteLife, false)
		revoked, used := make(chan Invite, 1), make(chan error, 1)
		go func() {
			got, err := b.RevokeInvite(i.ID)
			if err != nil {
				t.Error(err)
			}
			revoked <- got
		}()
		go func() { used <- b.Redeem(secret, id(1), begin, false) }()
		if r, u := <-revoked, <-used; (r.UsedBy == "") == (u == nil) {
			t.Fatalf("revoked: %+v, used: %v", r, u)
		}
		if err := b.Redeem(secret, id(1), begin, false); !errors.Is(err, ErrInviteRevoked) {
			t.Fatalf("used again: %v", err)
		}
	}
}

// A token and an invite are not used for each other, and are not used up by the attempt.
func TestTokensAndInvites(t *testing.T) {
	b, err := Open(&notes{})
	if err != nil {
		t.Fatal(err)
	}
	_, invite, _ := b.NewInvite(begin, InviteLife, false)
	i, token, err := b.NewInvite(begin, time.Hour, true)
	if err != nil || !i.Join || !i.Expires.Equal(begin.Add(time.Hour)) {
		t.Fatalf("%+v %v", i, err)
	}
	if err := b.Redeem(invite, id(1), begin, true); !errors.Is(err, ErrInvitePeer) {
		t.Errorf("an invite to join: %v", err)
	}
	if err := b.Redeem(token, id(1), begin, false); !errors.Is(err, ErrInviteJoin) {
		t.Errorf("a token to peer: %v", err)
	}
	if err := b.Redeem(token, id(1), begin.Add(59*time.Minute), true); err != nil {
		t.Errorf("the token itself: %v", err)
	}
	if err := b.Redeem(token, id(2), begin, true); !errors.Is(err, ErrInviteUsed) {
		t.Errorf("the token again, by another one: %v", err)
	}
	if err := b.Redeem(invite, id(1), begin, false); err != nil {
		t.Errorf("the invite itself: %v", err)
	}
}

// What let a cluster in does not let it in again after an end, whoever has ended it and whether or not that is remembered.
// Another invite does.
func TestAnEndUsesUpWhatLetItIn(t *testing.T) {
	for what, p := range map[string]Revocation{
		"denied": {Denied: true}, "removed, and forgotten": {WasPeer: true}, "ended by itself": {ByPeer: true, WasPeer: true},
	} {
		for _, join := range []bool{false, true} {
			n := &notes{}
			b := open(t, n)
			i, secret, _ := b.NewInvite(begin, time.Hour, join)
			_, others, _ := b.NewInvite(begin, time.Hour, join)
			minute := begin.Add(time.Minute)
			if err := errors.Join(b.Redeem(secret, id(1), minute, join), b.Redeem(others, id(2), minute, join)); err != nil {
				t.Fatal(err)
			}
			p.ID = id(1)
			n.full = true
			if b.Revoke(p) == nil || b.Redeem(secret, id(1), minute, join) != nil {
				t.Errorf("%s: an end that is not stored has used it up", what)
			}
			n.full = false
			if err := b.Revoke(p); err != nil {
				t.Fatal(err)
			}
			for range 3 { // at once, after a restart, and after the revocation is forgotten
				if err := b.Check(secret, id(1), minute, join); !errors.Is(err, ErrInviteSpent) {
					t.Errorf("%s: %v", what, err)
				}
				if err := b.Redeem(secret, id(1), minute, join); !errors.Is(err, ErrInviteSpent) {
					t.Errorf("%s: %v", what, err)
				}
				b = open(t, n)
				if err := b.Rejoin(id(1)); err != nil {
					t.Fatal(err)
				}
			}
			if all := b.Invites(); all[0].ID != i.ID || all[0].State(minute) != "ended" || all[1].State(minute) != "used" {
				t.Errorf("%s: %+v", what, all)
			}
			if err := b.Redeem(others, id(2), minute, join); err != nil {
				t.Errorf("%s: another one's: %v", what, err)
			}
			_, again, _ := b.NewInvite(minute, time.Hour, join)
			if err := b.Redeem(again, id(1), minute, join); err != nil {
				t.Errorf("%s: with another invite: %v", what, err)
			}
		}
	}
}

// A device that undoes a join which it could not complete may try again.
func TestAnUndoneJoinMayBeRepeated(t *testing.T) {
	b := open(t, &notes{})
	_, token, _ := b.NewInvite(begin, time.Hour, true)
	if err := errors.Join(b.Redeem(token, id(1), begin, true), b.Revoke(Revocation{ID: id(1), ByPeer: true, Undone: true}), b.Redeem(token, id(1), begin, true)); err != nil {
		t.Error(err)
	}
}

// The later decision counts: a denial over an unused invite of before, an invite over a denial of before; by their order,
// not by the clock.
func TestADenialAndAnUnusedInvite(t *testing.T) {
	n := &notes{}
	b := open(t, n)
	_, before, _ := b.NewInvite(begin, time.Hour, false)
	if err := errors.Join(b.Revoke(Revocation{ID: id(1), Denied: true, At: begin.Add(-time.Hour)}), b.Revoke(Revocation{ID: id(2), WasPeer: true})); err != nil {
		t.Fatal(err)
	}
	_, after, _ := b.NewInvite(begin, time.Hour, false)
	b = open(t, n)
	if err := b.Redeem(before, id(1), begin, false); !errors.Is(err, ErrInviteOlder) {
		t.Errorf("an older invite: %v", err)
	}
	if err := b.Redeem(after, id(1), begin, false); err != nil {
		t.Errorf("a newer invite: %v", err)
	}
	if err := b.Redeem(before, id(2), begin, false); err != nil {
		t.Errorf("an older invite, for one that nobody has denied: %v", err)
	}
}

// A note of before this version is read: its invites are valid, and its denials as old as they.
func TestAnOlderNote(t *testing.T) {
	n := &notes{}
	b := open(t, n)
	_, secret, _ := b.NewInvite(begin, time.Hour, false)
	if err := b.Revoke(Revocation{ID: id(1), Denied: true}); err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := json.Unmarshal(n.blob, &content); err != nil {
		t.Fatal(err)
	}
	delete(content, "ends")
	delete(content["partings"].([]any)[0].(map[string]any), "number")
	n.blob, _ = json.Marshal(content)
	b = open(t, n)
	if err := b.Redeem(secret, id(1), begin, false); err != nil {
		t.Error(err)
	}
}

// An invite that was seen expired never opens again, whatever the clock shows later. A clock before it was made only keeps it
// shut.
func TestExpiredIsExpired(t *testing.T) {
	past, minute := begin.Add(time.Hour), begin.Add(time.Minute)
	for what, see := range map[string]func(b *Store, secret []byte) error{
		"from time to time": func(b *Store, _ []byte) error { return b.Expire(past) },
		"when it is brought": func(b *Store, secret []byte) error {
			if err := b.Check(secret, id(1), past, false); !errors.Is(err, ErrInviteExpired) {
				return fmt.Errorf("checked: %v", err)
			}
			return nil
		},
	} {
		n := &notes{}
		b := open(t, n)
		_, secret, _ := b.NewInvite(begin, InviteLife, false)
		_, day, _ := b.NewInvite(begin, 24*time.Hour, false)
		if err := b.Redeem(secret, id(1), begin.Add(-time.Hour), false); !errors.Is(err, ErrInviteExpired) {
			t.Errorf("before it was made: %v", err)
		}
		if err := b.Check(secret, id(1), minute, false); err != nil {
			t.Errorf("%s: a clock that was behind: %v", what, err)
		}
		if err := see(b, secret); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for range 2 { // the clock is set back, and the power has gone
			if err := b.Redeem(secret, id(1), minute, false); !errors.Is(err, ErrInviteExpired) || b.Invites()[0].State(minute) != "expired" {
				t.Errorf("%s: %v, %s", what, err, b.Invites()[0].State(minute))
			}
			b = open(t, n)
		}
		if err := b.Redeem(day, id(1), minute, false); err != nil {
			t.Errorf("%s: one that has not expired: %v", what, err)
		}
	}
}
