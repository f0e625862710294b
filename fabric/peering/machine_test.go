package peering

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/wgkey"
)

var (
	timing = Timing{Ping: 2 * time.Second, Probe: time.Second / 2, PingTimeout: 2 * time.Second, Confirm: time.Minute, Misses: 3}
	id     = peer.ID("abcdefghijklmnopqrstuvwxyz234567")
	there  = netip.MustParseAddrPort("192.168.1.5:7442")
	keys   = [...]wgkey.Public{newKey(), newKey(), newKey()}

	denied  = &rpc.Error{Code: "denied", Message: "no"}
	pending = &rpc.Error{Code: "pending", Message: "a person has to approve it"}
	closed  = &rpc.Error{Code: "mode-closed", Message: "no"}
	silence = errors.New("no answer")
)

func newKey() wgkey.Public {
	k, err := wgkey.Generate()
	if err != nil {
		panic(err)
	}
	return k.Public()
}

func record(key, next wgkey.Public) peer.Record {
	p := netip.MustParsePrefix
	return peer.Record{ID: id, Name: "b", WireGuardKey: key, NextWireGuardKey: next, PeerCIDR: p("10.42.0.0/16"), PeerMappedCIDR: p("10.130.0.0/16"),
		LocalMappedCIDR: p("10.131.0.0/16"), TunnelAddress: netip.MustParseAddr("10.42.0.2"), Control: there, Tunnel: there}
}

// driver delivers events as package fabric does: pings to peers alone, exchanges when they are due, and no exchange that
// succeeds with a cluster that a person denies.
type driver struct {
	*Machine
	now    time.Time
	denied bool
	stored *peer.Record // what a restart finds
}

func newDriver() *driver {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &driver{Machine: New(id, now, timing), now: now}
}

func (d *driver) pin(r peer.Record) Effects {
	d.stored = &r
	_, do := d.Pin(d.now, r)
	return do
}

// event delivers one, and returns its effects.
func (d *driver) event(name string, pick func(n int) int) Effects {
	refusals := []error{pending, closed, silence}
	switch name {
	case "time passes":
		d.now = d.now.Add([]time.Duration{time.Millisecond, time.Second, 30 * time.Second}[pick(3)])
	case "found":
		return d.Found(d.now, fmt.Sprint("mdns/", pick(2)), discovery.Entry{ID: id, Name: "b", Addrs: []netip.AddrPort{there}}, pick(2) == 0, pick(2) == 0)
	case "gone":
		d.Gone(fmt.Sprint("mdns/", pick(2)))
	case "begin":
		if at, due := d.Next(); due && !at.After(d.now) && !d.Attempting() {
			d.Begin()
		}
	case "attempt ends":
		if !d.Attempting() {
			return 0
		}
		defer d.End()
		switch {
		case !d.Pinned() && pick(3) == 0: // the peering has ended since the exchange
			return d.Exchanged(d.now, keys[0])
		case d.denied && !d.Pinned():
			return d.Failed(d.now, denied, true, "denied")
		case pick(2) == 0:
			return d.Failed(d.now, refusals[pick(3)], false, "it failed")
		}
		return d.pin(record(keys[pick(2)], keys[2])) | d.Exchanged(d.now, keys[0])
	case "request":
		if d.denied {
			return d.Requested(d.now, "b", there, denied, "denied")
		}
		if pick(2) == 0 && !d.Pinned() {
			return d.Requested(d.now, "b", there, refusals[pick(2)], "not yet")
		}
		return d.pin(record(keys[pick(2)], keys[2])) | d.Received(d.now, pick(2) == 0)
	case "ping":
		if !d.Pinned() {
			return 0
		}
		_, do := [...]func() (time.Duration, Effects){
			func() (time.Duration, Effects) { return d.Answered(d.now, time.Millisecond) },
			func() (time.Duration, Effects) { return d.Missed(d.now, "") },
			func() (time.Duration, Effects) { return d.Missed(d.now, "another network has its prefix") },
			func() (time.Duration, Effects) { return d.Unplugged(d.now, "") },
			func() (time.Duration, Effects) { return d.Unplugged(d.now, "no tunnel") },
		}[pick(5)]()
		return do
	case "approved":
		d.denied = false
		if !d.Pinned() {
			return d.Approved(d.now, "b", []netip.AddrPort{there})
		}
	case "withdrawn":
		if !d.denied {
			return d.Withdrawn(d.now)
		}
	case "ended":
		d.denied, d.stored = pick(2) == 0, nil
		d.Unpin()
		return d.Ended(d.now, d.denied, "ended")
	case "trust changes":
		return d.Reconsider(d.now)
	}
	return 0
}

var events = []string{"time passes", "found", "gone", "begin", "attempt ends", "request", "ping", "ping", "approved", "withdrawn", "ended", "trust changes"}

func run(t *rapid.T, check func(d *driver, event string, before peer.View, do Effects)) *driver {
	d := newDriver()
	for range rapid.IntRange(1, 60).Draw(t, "events") {
		event := rapid.SampledFrom(events).Draw(t, "event")
		before := d.View()
		do := d.event(event, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
		if check != nil {
			check(d, event, before, do)
		}
	}
	return d
}

// Whatever has happened, a cluster that answers and is wanted becomes Connected.
func TestEveryStateHasAWayOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := run(t, nil)
		if d.Attempting() {
			d.Failed(d.now, silence, false, "no answer")
			d.End()
		}
		if !d.Pinned() {
			d.Approved(d.now, "b", []netip.AddrPort{there})
		} else {
			for range 2 * timing.Misses { // a peer that does not answer leads to an exchange
				d.now = d.now.Add(6 * timing.Ping)
				d.Missed(d.now, "")
			}
		}
		at, due := d.Next()
		if !due || at.After(d.now.Add(time.Minute)) {
			t.Fatalf("no exchange is due within a minute in %s: %v, %v", d.State(), at, due)
		}
		d.Begin()
		d.pin(record(keys[0], keys[2]))
		d.Exchanged(d.now, keys[0])
		d.End()
		if d.State().Apart() {
			t.Fatalf("exchanged, and %s", d.State())
		}
		d.Answered(d.now, time.Millisecond)
		if v := d.View(); v.State != peer.Connected || v.Reason != "" {
			t.Fatalf("it answers, and is %s: %s", v.State, v.Reason)
		}
	})
}

// What a person denies stays denied until a person approves it, whatever is discovered, asked and tried.
func TestANoOutlivesEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run(t, func(d *driver, event string, before peer.View, do Effects) {
			if d.denied && (d.State() != peer.Denied || d.Pinned()) {
				t.Fatalf("after %q a denied cluster is %s, a peer: %v", event, d.State(), d.Pinned())
			}
		})
	})
}

// Effects report each change once, and nothing that has not changed.
func TestEffectsAreTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run(t, func(d *driver, event string, before peer.View, do Effects) {
			v := d.View()
			if entered := do&Entered != 0; entered != (v.State != before.State) {
				t.Fatalf("%q: from %s to %s, reported: %v", event, before.State, v.State, entered)
			}
			if (v.State != before.State || v.Reason != before.Reason && before.Record.ID == v.Record.ID && event == "ping") && do&Changed == 0 {
				t.Fatalf("%q: from %s (%s) to %s (%s) without a change", event, before.State, before.Reason, v.State, v.Reason)
			}
			if v.State != before.State && !v.Since.Equal(d.now) {
				t.Fatalf("%q: in %s since %v, not %v", event, v.State, v.Since, d.now)
			}
			if !d.Pinned() && !d.State().Apart() {
				t.Fatalf("%q: %s, and no peer", event, d.State())
			}
		})
	})
}

// An attempt that has begun is not due again until something new happens, and a failed one is put off.
func TestNoExchangeTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := run(t, nil)
		if d.Attempting() {
			d.Failed(d.now, silence, false, "no answer")
			d.End()
		}
		d.Due(d.now, true)
		d.Begin()
		if at, due := d.Next(); due {
			t.Fatalf("due at %v while it is tried", at)
		}
		d.Failed(d.now, silence, false, "no answer")
		d.End()
		if at, due := d.Next(); !due || !at.After(d.now) || at.After(d.now.Add(time.Minute)) {
			t.Fatalf("after a failure due: %v, at %v, now %v", due, at, d.now)
		}
	})
}

// A restart loses nothing that a peering needs, and makes nobody a peer.
func TestRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := run(t, nil)
		if (d.stored != nil) != d.Pinned() {
			t.Fatalf("stored: %v, a peer: %v", d.stored != nil, d.Pinned())
		}
		if d.stored == nil {
			return
		}
		again := New(id, d.now, timing)
		again.Loaded(d.now, *d.stored, true)
		was, _ := d.Link()
		is, _ := again.Link()
		was.State, is.State, was.RTT, is.RTT, was.Nearness, is.Nearness = "", "", 0, 0, 0, 0
		if !reflect.DeepEqual(was, is) || again.State() != peer.Connecting {
			t.Fatalf("%+v became %+v, %s", was, is, again.State())
		}
		if at, due := again.Next(); !due || at.After(d.now) {
			t.Fatalf("an exchange is due: %v, at %v", due, at)
		}
		if again.Answered(d.now, time.Millisecond); again.State() != peer.Connected {
			t.Fatalf("it answers, and is %s", again.State())
		}
	})
}

// A peer that does not answer is lost after so many pings, and tried by its next key.
func TestLost(t *testing.T) {
	d := newDriver()
	d.pin(record(keys[0], keys[2]))
	d.Answered(d.now, time.Millisecond)
	for n := 1; n <= 5; n++ {
		_, do := d.Missed(d.now, "")
		want := peer.Connected
		if n >= timing.Misses {
			want = peer.Lost
		}
		if d.State() != want || do&Doubt == 0 || (do&Configure != 0) != (n == 5) {
			t.Errorf("after %d misses %s, %b", n, d.State(), do)
		}
	}
	if d.Key() != keys[2] {
		t.Error("the next key is not tried")
	}
	if d.pin(record(keys[1], keys[2])); d.Key() != keys[1] {
		t.Error("a new key is not used")
	}
}

// The reason that people read is the cause that was known last. One about this device's tunnel goes with that trouble.
func TestReasons(t *testing.T) {
	const trouble, gone, nothing = "another network has its prefix", "it has stopped answering", "the tunnel carries nothing yet"
	pinned := func(d *driver) { d.pin(record(keys[0], wgkey.Public{})) }
	connected := func(d *driver) { pinned(d); d.Answered(d.now, time.Millisecond) }
	silent := func(why string) func(*driver) {
		return func(d *driver) {
			for range timing.Misses {
				d.Missed(d.now, why)
			}
		}
	}
	fails := func(err error) func(*driver) { return func(d *driver) { d.Failed(d.now, err, false, "it failed") } }
	refused := func(d *driver) { pinned(d); d.Requested(d.now, "b", there, closed, "not yet") }
	without := func(after time.Duration, why string) func(*driver) {
		return func(d *driver) {
			d.Unplugged(d.now, why)
			d.now = d.now.Add(after)
			d.Unplugged(d.now, why)
		}
	}
	patience := time.Duration(timing.Misses) * timing.PingTimeout
	for name, c := range map[string]struct {
		events []func(*driver)
		state  peer.State
		reason string
	}{
		"one that answered":                            {[]func(*driver){connected, silent("")}, peer.Lost, gone},
		"one that answered, by this device's fault":    {[]func(*driver){connected, silent(trouble)}, peer.Lost, trouble},
		"and the fault is over":                        {[]func(*driver){connected, silent(trouble), silent("")}, peer.Lost, gone},
		"one that was lost, and a fault follows":       {[]func(*driver){connected, silent(""), silent(trouble)}, peer.Lost, trouble},
		"one that never answered":                      {[]func(*driver){pinned, silent("")}, peer.Connecting, nothing},
		"one that never answered, by this fault":       {[]func(*driver){pinned, silent(trouble)}, peer.Connecting, trouble},
		"never answered, and this fault is over":       {[]func(*driver){pinned, silent(trouble), silent("")}, peer.Connecting, nothing},
		"one whose exchange failed keeps the cause":    {[]func(*driver){pinned, fails(silence), silent("")}, peer.Connecting, "it failed"},
		"a refusal is not a matter of the tunnel":      {[]func(*driver){refused, silent("")}, peer.Refused, "not yet"},
		"nor of this device's tunnel":                  {[]func(*driver){refused, silent(trouble)}, peer.Refused, "not yet"},
		"nor of one that is not there":                 {[]func(*driver){refused, without(0, "no tunnel")}, peer.Refused, "not yet"},
		"who answers in the tunnel is a peer":          {[]func(*driver){connected, fails(denied)}, peer.Connected, ""},
		"also after silence":                           {[]func(*driver){connected, fails(silence)}, peer.Connected, ""},
		"an exchange is no answer in the tunnel":       {[]func(*driver){pinned, func(d *driver) { d.Exchanged(d.now, keys[0]) }}, peer.Connecting, ""},
		"a tunnel that is soon back":                   {[]func(*driver){connected, without(patience-1, "no tunnel")}, peer.Connected, ""},
		"a tunnel that is away":                        {[]func(*driver){connected, without(patience, "no tunnel")}, peer.Lost, "no tunnel"},
		"a tunnel that is away, nobody knows why":      {[]func(*driver){connected, without(patience, "")}, peer.Lost, "there is no tunnel on this device"},
		"no tunnel from the beginning":                 {[]func(*driver){pinned, without(0, "no tunnel")}, peer.Connecting, "no tunnel"},
		"from the beginning, and the fault is over":    {[]func(*driver){pinned, without(0, "no tunnel"), silent("")}, peer.Connecting, nothing},
		"the tunnel is back, and the peer silent":      {[]func(*driver){connected, without(patience, "no tunnel"), silent("")}, peer.Lost, gone},
		"a tunnel that is away twice, each time short": {[]func(*driver){connected, without(patience-1, ""), func(d *driver) { d.Answered(d.now, 0) }, without(patience-1, "")}, peer.Connected, ""},
	} {
		d := newDriver()
		for _, event := range c.events {
			event(d)
		}
		if !strings.HasPrefix(d.Reason(), c.reason) || c.reason == "" && d.Reason() != "" || d.State() != c.state {
			t.Errorf("%s: %s, %q, want %s, %q", name, d.State(), d.Reason(), c.state, c.reason)
		}
	}
}

// A peer that is silent is asked for an exchange, unless one has just succeeded, is due or is under way.
func TestSilenceAsksForAnExchange(t *testing.T) {
	for name, c := range map[string]struct {
		before func(d *driver)
		want   bool
	}{
		"long ago": {func(d *driver) { d.now = d.now.Add(3*timing.Ping + 1) }, true},
		"just now": {func(d *driver) { d.now = d.now.Add(3 * timing.Ping) }, false},
		"under way": {func(d *driver) {
			d.now = d.now.Add(time.Hour)
			d.Begin()
		}, false},
		"due later": {func(d *driver) {
			d.now = d.now.Add(time.Hour)
			d.Due(d.now, false)
		}, false},
	} {
		d := newDriver()
		d.pin(record(keys[0], wgkey.Public{}))
		d.Exchanged(d.now, keys[0])
		c.before(d)
		for range timing.Misses {
			d.Missed(d.now, "")
		}
		if at, due := d.Next(); (due && !at.After(d.now)) != c.want {
			t.Errorf("%s: due %v at %v, want %v", name, due, at.Sub(d.now), c.want)
		}
	}
}

// Who is a peer, approved or in an attempt is not dropped to make room, and only strangers that nobody sees are idle.
func TestWhoMayBeForgotten(t *testing.T) {
	found := func(d *driver) {
		d.Found(d.now, "mdns/b", discovery.Entry{ID: id, Addrs: []netip.AddrPort{there}}, true, true)
	}
	for name, c := range map[string]struct {
		do                           func(d *driver)
		forgettable, idle, droppable bool
		again                        bool // an exchange is due when the rules of trust change
	}{
		"nobody":              {func(*driver) {}, true, true, true, false},
		"found":               {found, true, false, true, true},
		"found, and gone":     {func(d *driver) { found(d); d.Gone("mdns/b") }, true, true, true, false},
		"it asked":            {func(d *driver) { d.Requested(d.now, "b", there, pending, "a person has to approve it") }, true, true, true, true},
		"tried":               {func(d *driver) { found(d); d.Begin() }, true, false, false, true},
		"approved":            {func(d *driver) { found(d); d.Approved(d.now, "b", nil) }, false, false, false, true},
		"approved, withdrawn": {func(d *driver) { d.Approved(d.now, "b", nil); d.Withdrawn(d.now) }, true, true, true, false},
		"a peer":              {func(d *driver) { found(d); d.pin(record(keys[0], keys[1])) }, false, false, false, false},
		"a peer by lan": {func(d *driver) {
			r := record(keys[0], keys[1])
			r.Trust.How = peer.TrustLAN
			d.pin(r)
		}, false, false, false, true},
		"a peer nobody sees":   {func(d *driver) { d.pin(record(keys[0], keys[1])) }, false, false, false, false},
		"a peer, and no other": {func(d *driver) { found(d); d.pin(record(keys[0], keys[1])); d.Unpin() }, true, false, true, true},
	} {
		d := newDriver()
		c.do(d)
		_, droppable := d.Hope(d.now, 0)
		d.pace.Done()
		if got := d.Reconsider(d.now) != 0; d.Forgettable() != c.forgettable || d.Idle() != c.idle || droppable != c.droppable || got != c.again {
			t.Errorf("%s: forgettable %v, idle %v, droppable %v, asked again %v", name, d.Forgettable(), d.Idle(), droppable, got)
		}
	}
	d := newDriver()
	fresh0, _ := d.Hope(d.now.Add(fresh-1), 3)
	old, _ := d.Hope(d.now.Add(fresh), 3)
	d.Failed(d.now, silence, false, "no answer")
	tried, _ := d.Hope(d.now, 2)
	alone, _ := newDriver().Hope(d.now, 1)
	if alone <= fresh0 || fresh0 <= tried || tried <= old {
		t.Errorf("fresh and alone %d, fresh %d, tried with fewer at its address %d, old %d", alone, fresh0, tried, old)
	}
	d = newDriver()
	found(d)
	if d.Gone("mdns/another") || !d.Gone("mdns/b") || d.Gone("mdns/b") {
		t.Error("the last source goes once")
	}
}

// A notice is a change once.
func TestANoticeIsAChangeOnce(t *testing.T) {
	d := newDriver()
	for n, want := range []Effects{Changed, 0} {
		if got := d.Notice("its clock is wrong"); got != want || d.View().Reason != "its clock is wrong" {
			t.Errorf("%d: %b, %q", n, got, d.View().Reason)
		}
	}
}

// The nearness follows a change that lasts. A slow answer, or none, changes nothing.
func TestNearnessFollowsWhatLasts(t *testing.T) {
	now := time.Now()
	m := New(id, now, timing)
	m.Loaded(now, record(newKey(), wgkey.Public{}), true)
	m.Answered(now, 0)
	m.Unpin()
	m.Loaded(now, record(newKey(), wgkey.Public{}), true)
	answer := func(rtt time.Duration, times int) (changed bool) {
		for range times {
			_, do := m.Answered(now, rtt)
			changed = changed || do&Changed != 0
		}
		return changed
	}
	nearness := func() int { l, _ := m.Link(); return l.Nearness }
	answer(time.Millisecond, 1)
	if nearness() != peer.MaxNearness {
		t.Errorf("nearness %d after the first answer", nearness())
	}
	if answer(time.Second, lasting-1) || answer(time.Millisecond, 1) || answer(time.Second, lasting-1) || nearness() != peer.MaxNearness {
		t.Errorf("nearness %d after slow answers in between", nearness())
	}
	if !answer(time.Second, 1) || nearness() != 0 {
		t.Errorf("nearness %d after slow answers", nearness())
	}
}

// Two clusters that ping each other: one of them is enough for both, and both notice within 12 s that the link is cut,
// also while the tunnel reports that the path works, which makes pings rare: it reports the cut within 4.8 s
// (paths.DefaultTiming: three seconds, four answers missed, and the time in which news are combined).
func TestOneSidePings(t *testing.T) {
	timing := Timing{Ping: 3 * time.Second, Probe: time.Second / 2, PingTimeout: 2 * time.Second, Confirm: time.Minute, Misses: 3} // fabric.DefaultTiming
	type side struct {
		*Machine
		Pings
		next    time.Time
		count   int
		cut     time.Time // as the tunnel reports it
		pinging time.Time // until then
	}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var sides [2]*side
		for i := range sides {
			sides[i] = &side{Machine: New(id, now, timing), Pings: NewPings(timing.Ping), next: now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "start, ms")) * time.Millisecond)}
			sides[i].Pin(now, record(keys[0], keys[1]))
		}
		const quiet = 5 * time.Minute
		works := rapid.Bool().Draw(t, "the tunnel reports paths")
		cut := now.Add(quiet + time.Duration(rapid.IntRange(0, 9000).Draw(t, "cut, ms"))*time.Millisecond)
		for _, s := range sides {
			s.cut = cut.Add(time.Duration(rapid.IntRange(100, 4800).Draw(t, "reported, ms")) * time.Millisecond)
		}
		for end := cut.Add(12 * time.Second); now.Before(end); now = now.Add(10 * time.Millisecond) {
			for i, s := range sides {
				if works && !s.cut.After(now) {
					s.cut = end
					s.Needed()
					if s.State() == peer.Connected && s.pinging.Before(now) {
						s.next = now
					}
				}
				if now.Before(s.next) {
					continue
				}
				if rest := s.Rest(now, works && now.Before(cut)); rest > 0 && s.State() == peer.Connected {
					s.next = now.Add(rest)
					continue
				}
				s.count++
				if now.Before(cut) {
					wait, _ := s.Machine.Answered(now, time.Millisecond)
					s.Pings.Answered(now, time.Millisecond)
					s.next = now.Add(wait)
					sides[1-i].Pings.Received(now)
				} else { // the timeout is over when it is processed
					s.Needed()
					wait, _ := s.Missed(now.Add(timing.PingTimeout), "")
					s.pinging = now.Add(timing.PingTimeout)
					s.next = s.pinging.Add(wait)
				}
			}
		}
		for i, s := range sides {
			if s.State() != peer.Lost || s.Since().After(cut.Add(12*time.Second)) {
				t.Errorf("side %d is %s since %v after the cut", i, s.State(), s.Since().Sub(cut))
			}
		}
		every := timing.Ping
		if works {
			every *= calm
		}
		most := int(quiet/every) + int(quiet/(measureEvery*timing.Ping)) + 25 // at the start the class is new, at the end there are misses
		if n := sides[0].count + sides[1].count; n > most {
			t.Errorf("%d pings in %v, want %d at most", n, quiet, most)
		}
	})
}

// Round trips of another class cause a few more pings, and again only after a long time.
func TestAnotherClassOfRoundTripsIsMeasured(t *testing.T) {
	const interval = 4 * time.Second
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := NewPings(interval)
	rest := func(want time.Duration) {
		t.Helper()
		if got := p.Rest(now, true); got != want {
			t.Errorf("at rest for %v, want %v", got, want)
		}
	}
	settle := func(rtt time.Duration) {
		t.Helper()
		for range lasting {
			rest(interval)
			p.Answered(now, rtt)
		}
		rest(calm * interval)
	}
	p.Answered(now, time.Millisecond)
	settle(time.Millisecond)
	p.Answered(now, time.Second)
	rest(calm * interval)
	now = now.Add(doubtEvery * interval)
	p.Answered(now, time.Millisecond)
	rest(calm * interval)
	p.Answered(now, time.Second)
	settle(time.Second)
	now = now.Add(calm*interval - interval/4)
	rest(0)
	now = now.Add(-1)
	rest(interval/4 + 1)
}

// An announcement in the name of a peer adds addresses. It takes away none until the peer has proved itself, fills no more
// than its places, and causes an exchange now and then.
func TestAnAnnouncementTakesNothingAway(t *testing.T) {
	d := newDriver()
	d.pin(record(keys[0], wgkey.Public{}))
	announce := func(addrs ...netip.AddrPort) {
		d.Found(d.now, "mdns/b", discovery.Entry{ID: id, Name: "b", Addrs: addrs}, true, true)
	}
	moved := netip.MustParseAddrPort("192.168.1.77:7442")
	dead := func(n int) (out []netip.AddrPort) {
		for i := range discovery.MaxAddrs {
			out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(n), byte(i)}), 7442))
		}
		return out
	}
	announce(moved)
	announce(dead(2)...)
	if got := d.Addrs().All(); !slices.Contains(got, moved) || got[1] != there {
		t.Errorf("%v, want %v among them, and %v second", got, moved, there)
	}
	for n := range 100 {
		announce(dead(n)...)
	}
	if n := len(d.Addrs().All()); n != 1+2*discovery.MaxAddrs {
		t.Errorf("%d addresses", n)
	}
	if got := d.Addrs().Known; !slices.Equal(got, []netip.AddrPort{there}) {
		t.Errorf("known: %v, want %v alone", got, there)
	}
	d.Answered(d.now, time.Millisecond)
	d.Exchanged(d.now, keys[0])
	d.Begin()
	announce(moved)
	if next, due := d.Next(); !due || next.Sub(d.now) < pairing.Grace {
		t.Errorf("an exchange after %s, due %v", next.Sub(d.now), due)
	}
	if got := d.Addrs().All(); slices.Contains(got, dead(98)[0]) {
		t.Errorf("%v: what was announced before the exchange stays", got)
	}
}

// A peer that has refused, or confirmed nothing in time, is one for this side alone, unless it answers in the tunnel.
func TestWhoIsAPeerForOneSideAlone(t *testing.T) {
	for what, refusal := range map[string]error{"it refuses": denied, "it is silent": silence} {
		d := newDriver()
		r := record(keys[0], wgkey.Public{})
		r.Unconfirmed = true
		d.pin(r)
		began := d.now.Add(time.Second)
		d.Failed(began, refusal, false, "")
		if got := d.Onesided(began, began); got != errors.Is(refusal, denied) {
			t.Errorf("%s: %v at once", what, got)
		}
		late := d.now.Add(2 * timing.Confirm)
		if !d.Onesided(began, late) {
			t.Errorf("%s: it stays", what)
		}
		d.Answered(late, time.Millisecond)
		if d.State() != peer.Connected || d.Onesided(began, late) {
			t.Errorf("%s: it goes though it answers in the tunnel: %v", what, d.State())
		}
	}
}

// A peer without all that a tunnel needs is a peer, and says why it has no link.
func TestUnlinked(t *testing.T) {
	d := newDriver()
	state := func(linked, unlinked bool, why string) {
		t.Helper()
		_, ok := d.Link()
		u, also := Unlinked(d.Machine)
		if ok != linked || also != unlinked || !strings.Contains(u.Why, why) || also && (u.ID != id || u.Name != "b") {
			t.Errorf("link %v, without %v: %+v", ok, also, u)
		}
	}
	state(false, false, "")
	whole := record(keys[0], wgkey.Public{})
	keyless, blind := whole, whole
	keyless.WireGuardKey, blind.PeerMappedCIDR = wgkey.Public{}, netip.Prefix{}
	d.Loaded(d.now, keyless, false)
	state(false, true, "on b: rivulet rotate-key")
	d.Loaded(d.now, blind, false)
	state(false, true, "exchange it again")
	d.Loaded(d.now, whole, false)
	state(true, false, "")
	d.Unpin()
	state(false, false, "")
}
