package clock

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rivulet/appliance/health"
)

// What the world's clock says while the tests run.
var today = built.Add(200 * 24 * time.Hour)

func TestStart(t *testing.T) {
	epoch := time.Unix(0, 0)
	for _, tt := range []struct {
		name  string
		wall  time.Time
		chip  time.Time
		disk  func(*testing.T) disk
		after time.Duration
		now   time.Time
		from  string
	}{
		{"a clock that can be right is left alone", today, time.Time{}, nil, 0, today, FromSystem},
		{"a chip that has drifted since the last stop is", today.Add(-time.Minute), time.Time{},
			func(t *testing.T) disk { return disk{}.proven(t, today) }, 0, today.Add(-time.Minute), FromSystem},
		{"1970, and nobody knows better", epoch, time.Time{}, nil, patience, built.Add(patience), FromFloor},
		{"1970, and this device has run before", epoch, time.Time{},
			func(t *testing.T) disk { return disk{}.saved(t, today) }, patience, today.Add(patience), FromFloor},
		{"before the last stop", today.Add(-24 * time.Hour), time.Time{},
			func(t *testing.T) disk { return disk{}.saved(t, today) }, patience, today.Add(patience), FromFloor},
		{"1970 with a chip that the kernel has no driver for in time", epoch, today, nil, 0, today, FromChip},
		{"1970 with a chip whose battery is empty", epoch, epoch.Add(time.Hour), nil, patience, built.Add(patience), FromFloor},
		{"a century too late", today.AddDate(100, 0, 0), time.Time{}, nil, patience, built.Add(patience), FromFloor},
		{"saved a century too late", today, time.Time{},
			func(t *testing.T) disk { return disk{}.saved(t, today.AddDate(100, 0, 0)) }, 0, today, FromSystem},
		{"a saved time that is nonsense", today, time.Time{},
			func(*testing.T) disk { return disk{noteName: []byte("{")} }, 0, today, FromSystem},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, d := newBoard(tt.wall), disk{}
				b.chip = tt.chip
				if tt.disk != nil {
					d = tt.disk(t)
				}
				v := switchOn(t, b, d)
				if v.isReady() != (tt.after == 0) {
					t.Errorf("ready at once: %v", v.isReady())
				}
				v.after(tt.after)
				v.wantReady(tt.after)
				v.wantTime(tt.now, tt.from)
				if n := len(b.sets); n > 1 || n == 1 && tt.from == FromSystem {
					t.Errorf("the clock was set %d times", n)
				}
				if p := v.problem(health.ClockImplausible); p != "" {
					t.Errorf("still a problem: %s", p)
				}
				if p := v.problem(health.ClockNotSynchronized); !strings.Contains(p, tt.from) {
					t.Errorf("not synchronized, yet the problem is %q", p)
				}
				v.switchOff()
			})
		})
	}
}

func TestAStartTakesTheFirstBetterTime(t *testing.T) {
	for _, tt := range []struct {
		name   string
		better func(*device)
		from   string
	}{
		{"NTP", func(v *device) { v.board.set(today, true) }, FromNTP},
		{"a peer", func(v *device) { v.hears("pi", today, true) }, FromPeers},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := switchOn(t, newBoard(time.Unix(0, 0)), disk{})
				v.after(7 * time.Second)
				if v.isReady() {
					t.Error("ready without a better time")
				}
				tt.better(v)
				v.after(checkAtStart)
				v.wantReady(7 * time.Second)
				v.wantTime(today.Add(checkAtStart), tt.from)
				if len(v.jumps) > 0 {
					t.Errorf("a jump before anything ran: %v", v.jumps)
				}
				v.switchOff()
			})
		})
	}
	t.Run("a peer that agrees with the floor", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := switchOn(t, newBoard(time.Unix(0, 0)), disk{}.saved(t, today))
			v.hears("pi", today.Add(30*time.Second), true)
			v.after(checkAtStart)
			v.wantReady(0)
			v.switchOff()
		})
	})
}

// In a container nobody may set the clock: nothing runs until its owner has.
func TestWhereTheClockMayNotBeSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(time.Unix(0, 0))
		b.forbids = true
		v := switchOn(t, b, disk{})
		v.after(time.Hour)
		if v.isReady() {
			t.Error("ready in 1970")
		}
		if p := v.problem(health.ClockImplausible); !strings.Contains(p, "1970") || !strings.Contains(p, "not permitted") {
			t.Errorf("the problem is %q", p)
		}
		if _, synchronized := v.Reading(); synchronized {
			t.Error("peers are told that it is 1970")
		}
		b.set(today, false)
		v.after(checkAtStart)
		if !v.isReady() || v.problem(health.ClockImplausible) != "" {
			t.Errorf("set by its owner, yet ready %v, problem %q", v.isReady(), v.problem(health.ClockImplausible))
		}
		v.switchOff()
	})
}

func TestJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := switchOn(t, newBoard(today), disk{})
		step := func(what string, by time.Duration, synchronized bool, jumps int) {
			t.Helper()
			v.jumps = nil
			v.board.set(v.board.Now().Add(by), synchronized)
			v.after(time.Second)
			if len(v.jumps) != jumps || jumps == 1 && (v.jumps[0].By-by).Abs() > time.Second {
				t.Errorf("%s: jumps %v, want %d", what, v.jumps, jumps)
			}
		}
		step("an hour ahead", time.Hour, false, 1)
		step("a year ahead, by NTP", 365*24*time.Hour, true, 1)
		step("half a year back, by NTP", -180*24*time.Hour, true, 1)
		step("four minutes ahead", 4*time.Minute, true, 0)
		step("four minutes back", -4*time.Minute, true, 0)
		v.jumps = nil
		v.board.sleep(24 * time.Hour)
		v.after(checkEvery)
		if len(v.jumps) > 0 {
			t.Errorf("a night's sleep is taken for a jump: %v", v.jumps)
		}
		// A kernel that cannot tell when the clock is set.
		v.board.mu.Lock()
		v.board.wall = v.board.wall.Add(time.Hour)
		v.board.mu.Unlock()
		v.after(checkEvery)
		if len(v.jumps) != 1 {
			t.Errorf("without the kernel's help: jumps %v", v.jumps)
		}
		v.switchOff()
	})
}

// Somebody who sets a running clock back is not fought: it may have been wrong all
// the time. Only what a time service has said stands against it, and is shown.
func TestSetBackByHand(t *testing.T) {
	for _, proven := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBoard(today)
			b.disc.Synchronized = proven
			v := switchOn(t, b, disk{})
			v.after(2 * time.Hour)
			back := today.Add(-30 * 24 * time.Hour)
			b.set(back, false)
			v.after(checkEvery)
			if len(b.sets) != 0 || len(v.jumps) != 1 {
				t.Errorf("proven %v: set to %v, jumps %v", proven, b.sets, v.jumps)
			}
			if shown := v.problem(health.ClockImplausible) != ""; shown != proven {
				t.Errorf("proven %v: implausible %v", proven, shown)
			}
			v.switchOff()
			// The next start without a clock begins where that was, or where it was proved to be.
			v = switchOn(t, newBoard(time.Unix(0, 0)), v.disk)
			want := back
			if proven {
				want = today.Add(2 * time.Hour)
			}
			if got := v.Status().Floor; apart(got, want) > time.Minute {
				t.Errorf("proven %v: floor %s, want %s", proven, got, want)
			}
			v.switchOff()
		})
	}
}

// A device that ran with a clock far ahead does not hold on to it against NTP.
func TestATimeServiceLowersTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := switchOn(t, newBoard(today), disk{}.saved(t, today.AddDate(5, 0, 0)))
		v.wantTime(today.AddDate(5, 0, 0), FromFloor) // it was told so
		v.after(patience)
		v.board.set(today, true)
		v.after(checkEvery)
		v.wantTime(today.Add(checkEvery), FromNTP)
		if f := v.Status().Floor; f.After(today.Add(time.Minute)) {
			t.Errorf("the floor is still %s", f)
		}
		if len(v.jumps) != 1 || v.jumps[0].By > 0 {
			t.Errorf("jumps %v", v.jumps)
		}
		v.switchOff()
	})
}

func TestTheNoteIsWrittenHourlyAndAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := switchOn(t, newBoard(today), disk{})
		floorAfter := func() time.Time {
			c := New(Config{System: newBoard(today), Built: built, Store: v.disk, Log: v.Clock.log})
			if err := c.load(); err != nil {
				t.Fatal(err)
			}
			return c.floor.at()
		}
		v.after(59 * time.Minute)
		if f := floorAfter(); apart(f, today) > time.Second {
			t.Errorf("after 59 minutes the note says %s", f)
		}
		v.after(2 * time.Minute)
		if f := floorAfter(); apart(f, today.Add(time.Hour)) > time.Minute {
			t.Errorf("after an hour the note says %s", f)
		}
		v.after(20 * time.Minute)
		v.board.set(v.board.Now(), true)
		v.after(checkEvery)
		if f := floorAfter(); apart(f, today.Add(81*time.Minute)) > time.Minute {
			t.Errorf("newly synchronized, the note says %s", f)
		}
		v.after(20 * time.Minute)
		v.switchOff()
		if f := floorAfter(); apart(f, today.Add(101*time.Minute)) > time.Minute {
			t.Errorf("after the stop the note says %s", f)
		}
	})
}
