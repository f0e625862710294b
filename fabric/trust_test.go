package fabric

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/trust"
)

func asking(c *Config)  { c.Trust = Policy{Mode: pairing.ModeAsk} }
func faraway(c *Config) { c.OnLink = func(netip.Addr) bool { return false } }
func in(secret string) func(*Config) {
	return func(c *Config) { c.Trust = Policy{Mode: pairing.ModeGroup, Secret: secret} }
}
func (c *cluster) id() peer.ID { return c.cfg.Identity.ID }

// agreedUpon waits until both are connected, and says how each trusts the other.
func agreedUpon(t *testing.T, a, b *cluster, howA, howB string) {
	t.Helper()
	if v := a.awaitState(b, peer.Connected); v.Trust.How != howA || v.Trust.At.IsZero() {
		t.Errorf("%s trusts %s: %+v, want %s", a.cfg.Name, b.cfg.Name, v.Trust, howA)
	}
	if v := b.awaitState(a, peer.Connected); v.Trust.How != howB {
		t.Errorf("%s trusts %s: %+v, want %s", b.cfg.Name, a.cfg.Name, v.Trust, howB)
	}
}

func TestAskWaitsForAWord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a", asking), w.cluster(2, "b")
	if v := a.awaitState(b, peer.Waiting); !strings.Contains(v.Reason, "rivulet approve b") {
		t.Errorf("a says %q", v.Reason)
	}
	if v := b.awaitState(a, peer.Waiting); !strings.Contains(v.Reason, "run on a: rivulet approve b") {
		t.Errorf("b says %q", v.Reason)
	}
	if al := a.Alarms(); len(al) != 1 || al[0].Code != "waiting" || len(b.Alarms()) != 0 {
		t.Errorf("alarms: %+v, of b %+v", al, b.Alarms())
	}
	if a.store.len() != 0 || b.store.len() != 0 {
		t.Error("somebody has a record already")
	}
	if v, err := a.Approve(t.Context(), "b"); err != nil || v.State.Apart() {
		t.Fatalf("%+v %v", v, err)
	}
	agreedUpon(t, a, b, peer.TrustApproved, peer.TrustLAN)
	if len(a.Alarms()) != 0 {
		t.Errorf("alarms: %+v", a.Alarms())
	}
}

// Where both ask, both have to say yes, in whatever order and with a restart between.
func TestBothAsk(t *testing.T) {
	// Not beside others: it has a bound of real time.
	w := newWorld(t)
	a, b := w.cluster(1, "a", asking), w.cluster(2, "b", asking)
	a.awaitState(b, peer.Waiting)
	b.awaitState(a, peer.Waiting)
	v, err := b.Approve(t.Context(), a.id().Short())
	if err != nil || v.State != peer.Waiting || !strings.Contains(v.Reason, "run on a: rivulet approve b") {
		t.Fatalf("%+v %v", v, err)
	}
	b.stop()
	b.start()
	a.awaitState(b, peer.Waiting)
	if _, err := a.Approve(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	agreedUpon(t, a, b, peer.TrustApproved, peer.TrustApproved)
}

func TestApproveByAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quiet := func(c *Config) { c.Sources = nil }
	a, b := w.cluster(1, "a", asking, faraway, quiet), w.cluster(2, "b", asking, faraway, quiet)
	if _, err := a.Approve(t.Context(), "nobody.invalid"); err == nil || !strings.Contains(err.Error(), "rivulet peers") {
		t.Errorf("a name of nobody: %v", err)
	}
	v, err := a.Approve(t.Context(), netip.AddrPortFrom(onLAN, b.cfg.Port).String())
	if err != nil || v.State != peer.Waiting {
		t.Fatalf("%+v %v", v, err)
	}
	b.awaitState(a, peer.Waiting) // from elsewhere, and shown all the same
	if _, err := b.Approve(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	agreedUpon(t, a, b, peer.TrustApproved, peer.TrustApproved)
}

func TestGroup(t *testing.T) {
	t.Parallel()
	const secret = "correct horse battery"
	w := newWorld(t)
	// A proof counts from anywhere.
	a, b := w.cluster(1, "a", in(secret), faraway), w.cluster(60, "b", in(secret), faraway)
	agreedUpon(t, a, b, peer.TrustGroup, peer.TrustGroup)
	for n, tt := range []struct {
		name, code string
		change     func(*Config)
	}{{"wrong", "different group secrets", in(secret + "!")}, {"none", "group", func(*Config) {}}, {"asks", "group", asking}} {
		for i, id := range []byte{3, 90} { // either side begins
			c := w.cluster(id+byte(n), tt.name+string(rune('0'+i)), tt.change)
			a.await(tt.name+" refused", func() bool {
				v := a.view(c)
				if tt.name == "asks" { // it does not call, and does not answer either
					return v.Trust.How == "" && v.State != "" && v.State != peer.Connected
				}
				return v.State == peer.Refused && strings.Contains(v.Reason, tt.code) && strings.Contains(v.Reason, "configuration of both")
			})
			if tt.name != "asks" {
				c.await("the same on the other side", func() bool {
					v := c.view(a)
					return v.State == peer.Refused && strings.Contains(v.Reason, tt.code)
				})
			}
			if a.store.len() != 1 || c.store.len() != 0 {
				t.Errorf("%s: a has %d records, it has %d", tt.name, a.store.len(), c.store.len())
			}
			c.stop()
		}
	}
	// Those that are trusted stay, whatever the secret is later.
	a.SetTrust(Policy{Mode: pairing.ModeGroup, Secret: "another secret of ours"})
	a.stop()
	a.cfg.Trust = Policy{Mode: pairing.ModeGroup, Secret: "another secret of ours"}
	a.start()
	agreedUpon(t, a, b, peer.TrustGroup, peer.TrustGroup)
}

// After trust.mode: group is set on peers by lan, those with the secret become members by themselves, in whatever order
// and over a restart. The others stay, and an alarm says which, with commands that work. Who has left does not come back
// with the secret.
func TestAGroupOfPeersByLAN(t *testing.T) {
	t.Parallel()
	group := Policy{Mode: pairing.ModeGroup, Secret: "correct horse battery"}
	w := newWorld(t)
	a, b, c, d := w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "b"), w.cluster(4, "d") // two of one name
	liar := newStranger(t, 60)
	if err := liar.pair(a); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*cluster{b, c, d} {
		agreedUpon(t, a, x, peer.TrustLAN, peer.TrustLAN)
	}
	alarmed := func(names, cure string) {
		t.Helper()
		a.await("an alarm about "+names, func() bool {
			al := a.Alarms()
			return len(al) == 1 && al[0].Code == "trust-lan" && strings.HasSuffix(al[0].Text, "by the LAN alone: "+names) && strings.Contains(al[0].Cure, cure)
		})
	}
	if al := a.Alarms(); len(al) != 0 {
		t.Errorf("trust.mode is lan: %+v", al)
	}
	a.SetTrust(group)
	twins := []string{b.cfg.Identity.ID.Short(), c.cfg.Identity.ID.Short()}
	slices.Sort(twins)
	alarmed(strings.Join(twins, ", ")+", d, stranger", "rivulet unpeer --lan; to keep one, as this: rivulet approve "+twins[0]+"; one with the group's secret")
	other := pairing.NewGroupKey("another horse battery")
	liar.self.Group, liar.starts = &other, liar.starts+1
	if err := liar.pair(a); err != nil {
		t.Fatal(err)
	}
	b.SetTrust(group)
	c.stop()
	c.cfg.Trust = group
	c.start()
	for _, x := range []*cluster{b, c} {
		a.await("a member", func() bool { return a.view(x).Trust.How == peer.TrustGroup })
		agreedUpon(t, a, x, peer.TrustGroup, peer.TrustGroup)
	}
	alarmed("d, stranger", "rivulet approve d")
	if v := a.viewOf(liar.id.ID); v.Trust.How != peer.TrustLAN {
		t.Errorf("another secret: %+v", v.Trust)
	}
	if v, err := a.Approve(t.Context(), "d"); err != nil || v.Trust.How != peer.TrustApproved {
		t.Fatalf("%+v %v", v, err)
	}
	alarmed("stranger", "rivulet unpeer --lan")
	if gone, stay, err := a.UnpeerLAN(t.Context(), false); err != nil || !slices.Equal(gone, []string{"stranger"}) || len(stay) > 0 {
		t.Fatalf("%v %v %v", gone, stay, err)
	}
	if al := a.Alarms(); len(al) != 0 {
		t.Errorf("%+v", al)
	}
	a.stop()
	a.cfg.Trust = group
	a.start()
	agreedUpon(t, a, b, peer.TrustGroup, peer.TrustGroup)
	if _, err := a.Unpeer(t.Context(), string(b.cfg.Identity.ID), Unpeer{}); err != nil {
		t.Fatal(err)
	}
	b.await("its end", func() bool {
		v := b.view(a)
		return v.State == peer.Refused && strings.Contains(v.Reason, "has ended the peering")
	})
	if v := a.view(b); v.State != peer.Denied || v.Trust.How != "" {
		t.Errorf("%+v", v)
	}
}

func TestInvite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quiet := func(c *Config) { c.Sources = nil }
	a := w.cluster(1, "a", asking, faraway, quiet)
	b, c := w.cluster(2, "b", asking, faraway, quiet), w.cluster(3, "c", faraway, quiet)
	i, code, err := a.Invite()
	if err != nil {
		t.Fatal(err)
	}
	a.stop() // it survives a restart
	if _, err := b.Accept(t.Context(), code.URL()); err == nil || !strings.Contains(err.Error(), "has not worked") {
		t.Errorf("with a switched off: %v", err)
	}
	a.start()
	if v, err := b.Accept(t.Context(), code.URL()); err != nil || v.ID != a.id() {
		t.Fatalf("%+v %v", v, err)
	}
	agreedUpon(t, a, b, peer.TrustInvite, peer.TrustInvite)
	refused := func(who *cluster, text, why string) {
		t.Helper()
		if _, err := who.Accept(t.Context(), text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
		if who.store.len() != 0 || a.store.len() != 1 {
			t.Error("there is a record")
		}
	}
	refused(c, code.String(), "used already, by another cluster")
	two, code2, _ := a.Invite()
	if _, err := a.Revoke(two.ID); err != nil {
		t.Fatal(err)
	}
	refused(c, code2.String(), "was revoked")
	code2.Secret = make([]byte, trust.SecretLen)
	refused(c, code2.String(), "no such invite")
	refused(c, "hello", "no invite")
	code2.ID = c.id() // a's address under another ID
	refused(b2(w), code2.String(), "has not worked")
	if all := a.Invites(); len(all) != 2 || all[0].ID != i.ID || all[0].UsedBy != b.id() || !all[1].Revoked {
		t.Errorf("%+v", all)
	}
}

func b2(w *world) *cluster { return w.cluster(9, "d", faraway, func(c *Config) { c.Sources = nil }) }

// While one side ends the peering everything of it ends on both, requests that last
// too; it does not come back by itself, over restarts, until the user says so.
func TestUnpeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.cluster(1, "a"), w.cluster(2, "b"), w.cluster(3, "c")
	ended := make(chan struct{})
	a.Handle("GET /v1/stream", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	}))
	for _, x := range []*cluster{a, b, c} {
		for _, y := range []*cluster{a, b, c} {
			if x != y {
				x.awaitState(y, peer.Connected)
			}
		}
	}
	client, url, err := b.Client(a.id())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(url + "/v1/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()

	begun := time.Now()
	if v, err := a.Unpeer(t.Context(), "b", Unpeer{}); err != nil || v.State != peer.Denied {
		t.Fatalf("%+v %v", v, err)
	}
	if n := len(a.plane.config().Peers); n != 1 {
		t.Errorf("the tunnel has %d peers after that", n)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Error("what b asked for goes on")
	}
	b.await("that b has heard", func() bool { return b.store.len() == 1 && len(b.plane.config().Peers) == 1 })
	t.Logf("both were rid of it after %s", time.Since(begun))
	b.await("why", func() bool {
		v := b.view(a)
		return v.State == peer.Refused && strings.Contains(v.Reason, "a has ended the peering with b")
	})
	if v := a.view(b); v.State != peer.Denied || !strings.Contains(v.Reason, "rivulet peer b") {
		t.Errorf("a shows %+v", v)
	}
	if d := a.Departed(); len(d) != 1 || d[0] != b.id() {
		t.Errorf("departed: %v", d)
	}
	for _, x := range []*cluster{a, b} {
		x.stop()
		x.start()
	}
	b.await("the refusal once more", func() bool { return b.view(a).State == peer.Refused })
	if v := a.view(b); v.State != peer.Denied || len(a.Links()) != 1 || len(b.Links()) != 1 {
		t.Errorf("after a restart a shows %+v", v)
	}
	if a.view(c).State == "" || b.view(c).State == "" {
		t.Error("c was forgotten as well")
	}
	if _, err := a.Approve(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	agreedUpon(t, a, b, peer.TrustApproved, peer.TrustLAN)
	if len(a.Departed())+len(b.Departed()) != 0 {
		t.Error("departed, and a peer")
	}
}

// One that is away is told when it calls.
func TestUnpeerWithoutTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	b.stop()
	a.awaitState(b, peer.Lost)
	if _, err := a.Unpeer(t.Context(), "b", Unpeer{}); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Fatalf("%v", err)
	}
	if a.store.len() != 1 {
		t.Error("the record went though it was refused")
	}
	if _, err := a.Unpeer(t.Context(), "b", Unpeer{Force: true}); err != nil {
		t.Fatal(err)
	}
	if a.store.len() != 0 || len(a.plane.config().Peers) != 0 || len(a.Links()) != 0 {
		t.Error("something is left")
	}
	a.stop()
	a.start()
	b.start()
	b.await("that b has heard", func() bool { return b.store.len() == 0 && len(b.Links()) == 0 })
	if v := a.view(b); v.State != peer.Denied {
		t.Errorf("a shows %+v", v)
	}
	if v, err := a.Unpeer(t.Context(), "b", Unpeer{}); err != nil || v.State != peer.Denied || v.Notice == "" {
		t.Errorf("unpeered twice: %+v %v", v, err)
	}
	if v, err := a.Unpeer(t.Context(), "b", Unpeer{Forget: true}); err != nil || v.Notice == "" {
		t.Errorf("to be forgotten after all: %+v %v", v, err)
	}
	if v := a.view(b); v.State == peer.Denied {
		t.Errorf("it is not forgotten: %+v", v)
	}
	if _, err := a.Unpeer(t.Context(), "never", Unpeer{}); err == nil {
		t.Error("one that was never a peer was unpeered")
	}
}

// The power goes between the parting and the record: after the start it is no peer.
func TestPowerCutWhileUnpeering(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	a.stop()
	if err := a.decisions.Revoke(trust.Revocation{ID: b.id(), Name: "b", WasPeer: true, Denied: true}); err != nil {
		t.Fatal(err)
	}
	a.start()
	if a.store.len() != 0 || len(a.Links()) != 0 {
		t.Error("it is a peer")
	}
	b.await("that b has heard", func() bool { return b.store.len() == 0 })
}

func TestDenied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a", asking), w.cluster(2, "b")
	a.awaitState(b, peer.Waiting)
	if v, err := a.Deny(t.Context(), "b"); err != nil || v.State != peer.Denied {
		t.Fatalf("%+v %v", v, err)
	}
	for range 2 {
		b.await("the no", func() bool { return strings.Contains(b.view(a).Reason, "b was denied on a") })
		if len(a.Alarms()) != 0 {
			t.Error("it goes on asking")
		}
		a.stop()
		a.cfg.Trust = Policy{Mode: pairing.ModeLAN} // the no counts more
		a.start()
	}
	a.await("that a remembers", func() bool { return a.view(b).State == peer.Denied })
	if a.store.len()+b.store.len() != 0 {
		t.Error("there is a record")
	}
	// A peer that is denied is cut off.
	c := w.cluster(3, "c")
	agreedUpon(t, a, c, peer.TrustLAN, peer.TrustLAN)
	if _, err := a.Deny(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	c.await("that c has heard", func() bool { return c.view(a).Trust.How == "" })
}

// A key that comes under the name of a peer is an alarm. In a group, and where
// somebody is asked, it is no peer; on the LAN it is one of its own.
func TestAnotherKeyUnderAKnownName(t *testing.T) {
	t.Parallel()
	const secret = "correct horse battery"
	for _, tt := range []struct {
		name string
		mode func(*Config)
		peer bool
	}{{"group", in(secret), false}, {"lan", func(*Config) {}, true}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.cluster(1, "a", tt.mode), w.cluster(2, "b", tt.mode)
			a.awaitState(b, peer.Connected)
			b.stop()
			a.awaitState(b, peer.Lost)
			if len(a.Alarms()) != 0 {
				t.Errorf("alarms: %+v", a.Alarms())
			}
			other := w.cluster(9, "b", tt.mode)
			if tt.peer {
				a.awaitState(other, peer.Connected)
			} else {
				v := a.awaitState(other, peer.Refused)
				if !strings.Contains(v.Reason, "another key") {
					t.Errorf("a says %q", v.Reason)
				}
			}
			a.await("an alarm", func() bool {
				al := a.Alarms()
				return len(al) == 1 && al[0].Code == "key-changed" && strings.Contains(al[0].Peer, other.id().Short()) && strings.Contains(al[0].Cure, b.id().Short())
			})
			for _, l := range a.Links() {
				if l.ID == b.id() && l.State == peer.Connected || !tt.peer && l.ID == other.id() {
					t.Errorf("a link: %+v", l)
				}
			}
			if tt.peer {
				return
			}
			// It was set up anew, and the user says so.
			if _, err := a.Unpeer(t.Context(), b.id().Short(), Unpeer{Force: true}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Approve(t.Context(), other.id().Short()); err != nil {
				t.Fatal(err)
			}
			a.awaitState(other, peer.Connected)
		})
	}
}

// Where somebody is asked it is an alarm as soon as it is announced, and none of the
// words that are said of the old one is for it.
func TestAnotherKeyWhereSomebodyIsAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a", asking), w.cluster(2, "b")
	a.awaitState(b, peer.Waiting)
	if _, err := a.Approve(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	agreedUpon(t, a, b, peer.TrustApproved, peer.TrustLAN)
	other := w.cluster(9, "b", asking) // it does not even call
	v := a.awaitState(other, peer.Refused)
	if al := a.Alarms(); len(al) != 1 || al[0].Code != "key-changed" || !strings.Contains(v.Reason, "another key") {
		t.Errorf("%s, alarms %+v", v.Reason, al)
	}
	if _, err := a.Approve(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "2 clusters are meant") {
		t.Errorf("a name that two have: %v", err)
	}
	if v := a.view(b); v.State != peer.Connected {
		t.Errorf("the old one is %s", v.State)
	}
}

// Directions are switched from either side and told to the other.
func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	on, off := true, false
	link := func(of, to *cluster) peer.Link { l, _ := of.Link(to.id()); return l }
	both := func(what string, noBorrow, noLend bool) {
		t.Helper()
		a.await(what, func() bool {
			x, y := link(a, b), link(b, a)
			return x.NoBorrow == noBorrow && x.NoLend == noLend && y.NoBorrow == noLend && y.NoLend == noBorrow && x.State == peer.Connected
		})
	}
	both("both directions", false, false)
	if v, err := a.Set(t.Context(), "b", peer.Settings{Consume: &off}); err != nil || !v.Roles.NoConsume {
		t.Fatalf("%+v %v", v, err)
	}
	both("a borrows nothing", true, false)
	if _, err := b.Set(t.Context(), "a", peer.Settings{Consume: &off}); err != nil {
		t.Fatal(err)
	}
	both("nor does b", true, true)
	b.stop()
	b.start()
	both("the same after a restart", true, true)
	if _, err := a.Set(t.Context(), "b", peer.Settings{Consume: &on, Provide: &on}); err != nil {
		t.Fatal(err)
	}
	both("a borrows", false, true)
	if _, err := a.Set(t.Context(), "nobody", peer.Settings{Consume: &on}); err == nil {
		t.Error("nobody has roles")
	}
}

// A cluster that is reset takes its leave; it is met anew afterwards.
func TestLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
	if told := a.Leave(context.Background(), true); len(told) != 1 || told[0] != "b" {
		t.Errorf("told: %v", told)
	}
	b.await("that b has heard", func() bool { return b.store.len() == 0 })
	b.await("that b does not come back", func() bool { return strings.Contains(b.view(a).Reason, "is being reset") })
	a.stop()
	if err := a.cfg.Store.(*store).DeletePeer(b.id()); err != nil {
		t.Fatal(err)
	}
	if err := trust.Clear(a.cfg.Notes); err != nil {
		t.Fatal(err)
	}
	a.start()
	agreedUpon(t, a, b, peer.TrustLAN, peer.TrustLAN)
}

// A no is a no, in the middle of exchanges too: the last word is the person's.
func TestANoInTheMiddleOfExchanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a"), w.cluster(2, "b")
	for range 8 {
		agreedTwo(a, b)
		busy := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-busy:
					return
				default:
					b.party.Exchange(context.Background(), pairing.PostTo(b.cfg.Identity, a.id(), netip.AddrPortFrom(onLAN, a.cfg.Port), nil)) //nolint:errcheck // it is refused at some time
				}
			}
		}()
		if _, err := a.Deny(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if p, ok := a.decisions.Revocation(b.id()); !ok || !p.Denied || a.store.len() != 0 || len(a.plane.config().Peers) != 0 {
			t.Fatalf("after the no: %+v, %d records, tunnel %+v", p, a.store.len(), a.plane.config().Peers)
		}
		close(busy)
		<-stopped
		if a.store.len() != 0 {
			t.Fatal("it has come back")
		}
		if _, err := a.Approve(t.Context(), b.id().Short()); err != nil {
			t.Fatal(err)
		}
	}
}

func agreedTwo(a, b *cluster) {
	a.awaitState(b, peer.Connected)
	b.awaitState(a, peer.Connected)
}

// A worker that was removed, and a peer that was denied or unpeered, bring what let them in once more: it is used up.
func TestAnEndOutlivesATokenAndAnInvite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", asking, alone)
	n := byte(60)
	for what, end := range map[string]func(id peer.ID) error{
		"removed": func(id peer.ID) error {
			_, err := a.Unpeer(t.Context(), string(id), Unpeer{Force: true, Forget: true})
			return err
		},
		"denied": func(id peer.ID) error { _, err := a.Deny(t.Context(), string(id)); return err },
	} {
		for _, join := range []bool{false, true} {
			s := newStranger(t, n)
			n++
			_, code, err := a.invite(time.Hour, join)
			if err != nil {
				t.Fatal(err)
			}
			s.invite, s.join = code.Secret, join
			for range 2 { // its answer may have been lost
				if err := s.pair(a); err != nil {
					t.Fatalf("%s, join %v: %v", what, join, err)
				}
				s.record, s.starts = peer.Record{}, s.starts+1
			}
			if err := end(s.id.ID); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := s.pair(a); err == nil || !strings.Contains(err.Error(), "has ended since") {
					t.Errorf("%s, join %v: again: %v", what, join, err)
				}
				s.starts++
				a.stop()
				a.start()
			}
			if a.store.len() != 0 {
				t.Errorf("%s, join %v: there is a record", what, join)
			}
		}
	}
}

// An invite that does not work leaves what a person has said before: a denial denies, an approval approves.
func TestAFailedInviteLeavesDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.cluster(1, "a", alone), w.cluster(2, "b", alone), w.cluster(3, "c", alone)
	if _, err := a.Deny(t.Context(), string(b.id())); err != nil {
		t.Fatal(err)
	}
	before, _ := a.decisions.Revocation(b.id())
	_, invite, err := b.Invite()
	if err != nil {
		t.Fatal(err)
	}
	_, token, err := b.Token(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	_, ofC, err := c.Invite()
	if err != nil {
		t.Fatal(err)
	}
	b.stop()
	c.stop()
	if _, err := a.Approve(t.Context(), string(c.id())); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{invite.String(), ofC.String()} {
		if _, err := a.Accept(t.Context(), text); err == nil || !strings.Contains(err.Error(), "has not worked") {
			t.Errorf("an invite of one that is off: %v", err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := a.Join(short, token); err == nil {
		t.Error("a token of one that is off has worked")
	}
	if v := a.view(b); v.State != peer.Denied || !strings.Contains(v.Reason, "rivulet peer") {
		t.Errorf("%+v", v)
	}
	for range 2 { // and after a restart
		if p, _ := a.decisions.Revocation(b.id()); !p.Denied || !p.At.Equal(before.At) {
			t.Errorf("the denial was %+v and is %+v", before, p)
		}
		if y, ok := a.decisions.Approved(c.id()); !ok || y.How != peer.TrustApproved {
			t.Errorf("the approval is %+v", y)
		}
		a.stop()
		a.start()
	}
	b.cfg.Sources = []discovery.Source{w.hub.Source(b.id(), onLAN)} // in mode lan, and it calls
	b.start()
	w.hub.Set(discovery.Entry{Key: string(a.id()), ID: a.id(), Name: "a", Addrs: []netip.AddrPort{netip.AddrPortFrom(onLAN, a.cfg.Port)}})
	b.await("the denial", func() bool { return strings.Contains(b.view(a).Reason, "denied on a") })
	if v, err := a.Accept(t.Context(), invite.String()); err != nil || v.Trust.How != peer.TrustInvite {
		t.Errorf("the invite, with b on: %+v %v", v, err)
	}
	if _, denied := a.decisions.Revocation(b.id()); denied {
		t.Error("denied, and a peer")
	}
}

// An address means the cluster that proves itself there, whoever claims it; for a peer, where it has proved itself last.
func TestAnAddressMeansWhoIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.cluster(1, "a", asking, alone), w.cluster(2, "b", asking, alone)
	at := netip.AddrPortFrom(onLAN, b.cfg.Port)
	for _, c := range []*cluster{a, b} {
		c.await("an open control port", func() bool {
			return pairing.Reach(t.Context(), b.cfg.Identity, c.id(), netip.AddrPortFrom(onLAN, c.cfg.Port), nil) == nil
		})
	}
	liar := newStranger(t, 60).id.ID
	claim := func(id peer.ID, name string, at netip.AddrPort) {
		a.exchanger.discovered("claim", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(id), ID: id, Name: name, Addrs: []netip.AddrPort{at}}})
	}
	claim(liar, "liar", at)
	if v, err := a.Approve(t.Context(), at.String()); err != nil || v.ID != b.id() {
		t.Fatalf("approved %s, %v", v.ID.Short(), err)
	}
	if _, approved := a.decisions.Approved(liar); approved {
		t.Error("the one that claims the address is approved")
	}
	if _, err := b.Approve(t.Context(), netip.AddrPortFrom(onLAN, a.cfg.Port).String()); err != nil {
		t.Fatal(err)
	}
	a.awaitState(b, peer.Connected)
	elsewhere := netip.MustParseAddrPort("192.0.2.1:7442")
	claim(b.id(), "b", elsewhere)
	if _, err := a.Set(t.Context(), elsewhere.String(), peer.Settings{}); err == nil {
		t.Error("a peer is found by an address that it has not proved")
	}
	if _, err := a.Deny(t.Context(), "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("an address of nobody: %v", err)
	}
	if v, err := a.Unpeer(t.Context(), at.String(), Unpeer{Force: true}); err != nil || v.ID != b.id() {
		t.Errorf("unpeered %s, %v", v.ID.Short(), err)
	}
	// A name with the form of an address is not taken.
	named := newStranger(t, 61)
	named.self.Name = "192.0.2.9"
	if err := named.pair(a); pairing.Code(err) != "bad-message" {
		t.Error(err)
	}
	claim(named.id.ID, "192.0.2.9", elsewhere)
	if v := a.viewOf(named.id.ID); v.Name != "" {
		t.Errorf("%+v", v)
	}
}

// Of several that a word means none is chosen, seen now or not, and each can be told by what is printed of its ID.
func TestAWordThatMeansSeveral(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", asking, alone)
	twins := []peer.ID{peer.ID("aaaaaaaab" + strings.Repeat("b", 23)), peer.ID("aaaaaaaac" + strings.Repeat("c", 23))}
	for i, name := range []string{"lab", "lab", "aaaaaaaab"} {
		id := append(slices.Clone(twins), peer.ID(strings.Repeat("d", 32)))[i]
		a.exchanger.discovered("test", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(id), ID: id, Name: name, Addrs: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}}})
	}
	if _, err := a.Approve(t.Context(), "lab"); err == nil || !strings.HasSuffix(err.Error(), ": aaaaaaaabb, aaaaaaaac") {
		t.Errorf("%v", err)
	}
	if _, err := a.Deny(t.Context(), "aaaaaaaabb"); err != nil {
		t.Fatal(err)
	}
	if p, _ := a.decisions.Revocation(twins[0]); !p.Denied {
		t.Error("another one was denied")
	}
	// Two that were peers, under one name. The ID of a third begins with the name of one that is here.
	for _, id := range []string{"eeee", "ffff"} {
		if err := a.decisions.Revoke(trust.Revocation{ID: peer.ID(strings.Repeat(id, 8)), Name: "old", WasPeer: true}); err != nil {
			t.Fatal(err)
		}
	}
	for what, do := range map[string]func(string) error{
		"approve": func(word string) error { _, err := a.Approve(t.Context(), word); return err },
		"deny":    func(word string) error { _, err := a.Deny(t.Context(), word); return err },
		"unpeer":  func(word string) error { _, err := a.Unpeer(t.Context(), word, Unpeer{}); return err },
	} {
		if err := do("old"); err == nil || !strings.Contains(err.Error(), "eeeeeeee, ffffffff") {
			t.Errorf("%s: %v", what, err)
		}
	}
	a.exchanger.discovered("test", discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: "g", ID: peer.ID(strings.Repeat("g", 32)), Name: "eeeeeeee"}})
	if _, err := a.Approve(t.Context(), "eeeeeeee"); err == nil || !strings.Contains(err.Error(), strings.Repeat("e", 32)) {
		t.Errorf("%v", err)
	}
}

// An invite that has expired while the fabric runs is stored as expired.
func TestAnInviteExpiresForGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.cluster(1, "a", alone)
	if _, _, err := a.invite(time.Millisecond, false); err != nil {
		t.Fatal(err)
	}
	a.await("its end", func() bool { return a.Invites()[0].State(time.Now()) == "expired" })
	a.stop()
	a.start()
	if i := a.Invites()[0]; !i.Expired || i.State(i.Made) != "expired" {
		t.Errorf("%+v", i)
	}
}
