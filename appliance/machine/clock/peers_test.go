package clock

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"rivulet/appliance/health"
)

func TestPeersAsATimeSource(t *testing.T) {
	type says struct {
		by           time.Duration // ahead of today
		synchronized bool
	}
	for _, tt := range []struct {
		name  string
		ahead time.Duration // of our own clock
		ntp   bool
		peers []says
		want  time.Duration // how far ahead our clock is afterwards
	}{
		{"one peer that knows", -time.Hour, false, []says{{0, true}}, 0},
		{"one that does not", -time.Hour, false, []says{{0, false}}, -time.Hour},
		{"half a minute is left alone", -30 * time.Second, false, []says{{0, true}}, -30 * time.Second},
		{"two that agree", time.Hour, false, []says{{0, true}, {5 * time.Second, true}}, 0},
		{"two that do not", time.Hour, false, []says{{0, true}, {time.Hour * 24, true}}, time.Hour},
		{"a liar among three", time.Hour, false, []says{{0, true}, {time.Second, true}, {time.Hour * 24, true}}, 0},
		{"three of three minds", time.Hour, false, []says{{0, true}, {-24 * time.Hour, true}, {time.Hour * 24, true}}, time.Hour},
		{"many that do not know beside one that does", time.Hour, false, []says{{9 * time.Hour, false}, {9 * time.Hour, false}, {0, true}}, 0},
		{"before this was built", -time.Hour, false, []says{{built.Sub(today) - 24*time.Hour, true}}, -time.Hour},
		{"decades from now", -time.Hour, false, []says{{30 * 365 * 24 * time.Hour, true}}, -time.Hour},
		{"a time service of our own is believed first", -time.Hour, true, []says{{0, true}, {0, true}, {0, true}}, -time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBoard(today.Add(tt.ahead))
				b.disc.Synchronized = tt.ntp
				v := switchOn(t, b, disk{})
				for i, p := range tt.peers {
					v.hears(fmt.Sprintf("pi-%d", i), today.Add(p.by), p.synchronized)
				}
				v.after(checkEvery)
				if got := b.Now().Sub(today.Add(checkEvery)); (got - tt.want).Abs() > 10*time.Second {
					t.Errorf("our clock is %s ahead, want %s; problems %v", got, tt.want, v.health.Problems())
				}
				if _, synchronized := v.Reading(); synchronized != tt.ntp {
					t.Error("what peers said is passed on as known")
				}
				if right := tt.ntp || tt.want.Abs() <= agreeWithin; v.Status().Right() != right {
					t.Errorf("it is confirmed: %v; %+v", !right, v.Status())
				}
				v.switchOff()
			})
		})
	}
}

func TestWhatPeersSayIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := switchOn(t, newBoard(today), disk{})
		v.hears("pi", today.Add(-20*time.Second), true)
		v.after(checkEvery)
		st := v.Status()
		if (st.Offset-20*time.Second).Abs() > time.Second || st.Reference != "pi" || !strings.Contains(st.String(), "offset 19.999s to pi") {
			t.Errorf("%+v: %s", st, st)
		}
		v.hears("kit", today.Add(10*time.Hour), true)
		v.after(checkEvery)
		if p := v.problem(health.ClockNotSynchronized); !strings.Contains(p, "do not agree") || !strings.Contains(p, "kit says") {
			t.Errorf("the problem is %q", p)
		}
		v.after(2 * time.Minute) // what was said so long ago does not count
		if st := v.Status(); st.Reference != "" || st.Offset != 0 {
			t.Errorf("still compared with %q", st.Reference)
		}
		v.switchOff()
	})
}

// Two clusters that go back and forth do not take us along every time.
func TestPeersSetTheClockOnceAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(today)
		v := switchOn(t, b, disk{})
		for i := range 30 {
			v.hears("pi", b.Now().Add(time.Duration(1-2*(i%2))*24*time.Hour), true)
			v.after(checkEvery)
		}
		if len(b.sets) != 1 {
			t.Errorf("set %d times in five minutes", len(b.sets))
		}
		v.switchOff()
	})
}

// Whatever a minority of peers says, and whatever the rest is: what comes out is
// near the time of those that are right, possible, and from nobody who does not know.
func TestPeersProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := floor{Built: built, Proven: built.Add(time.Duration(rapid.Int64Range(0, 100).Draw(t, "proven days")) * 24 * time.Hour)}
		boot := 10 * time.Hour
		right := rapid.IntRange(0, 6).Draw(t, "right")
		wrong := rapid.IntRange(0, 6).Draw(t, "wrong")
		p := peers{}
		put := func(i int, ahead time.Duration, synchronized bool, old time.Duration) {
			p[fmt.Sprint(i)] = sample{name: fmt.Sprint(i), synchronized: synchronized, bootTime: today.Add(ahead - boot), at: boot - old, roundTrip: time.Millisecond}
		}
		for i := range right {
			put(i, time.Duration(rapid.Int64Range(-20, 20).Draw(t, "s"))*time.Second, true, 0)
		}
		for i := range wrong {
			put(100+i, time.Duration(rapid.Int64Range(-4000, 40000).Draw(t, "days"))*24*time.Hour, true, 0)
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "ignorant") {
			put(200+i, time.Duration(rapid.Int64Range(-40000, 40000).Draw(t, "h"))*time.Hour, false, 0)
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "gone") {
			put(300+i, 24*time.Hour, true, fresh+time.Second)
		}
		now, names, why := p.now(boot, f)
		for _, n := range names {
			if !p[n].synchronized || boot-p[n].at > fresh {
				t.Fatalf("%s was asked, who does not know or is gone", n)
			}
		}
		if len(names) > 0 && !f.likely(now) {
			t.Fatalf("%s cannot be", now)
		}
		if right > wrong && (len(names) < right || apart(now, today) > agreeWithin) {
			t.Fatalf("%d of %d are right, yet it is %s by %v (%s)", right, right+wrong, now, names, why)
		}
		if len(names) == 0 && !now.IsZero() {
			t.Fatal("a time from nobody")
		}
	})
}
