package fabric

import (
	"cmp"
	"log/slog"
	"net/netip"
	"time"

	"rivulet/fabric/connlimit"
	"rivulet/fabric/discovery"
)

// maxStrangers bounds the clusters that are no peers. Those that are only announced have a quarter at least.
const (
	maxStrangers = 256
	minAnnounced = maxStrangers / 4
)

// The functions below are called with mu held.

// makeRoomForStranger makes room for one more stranger, and reports whether there is some. Anybody can invent clusters, with
// valid identities, too; these must not keep a real one from being shown and tried. As long as announced strangers have more
// than their share, the one of them with least hope makes room: first one that did not answer, then one of an address with
// many others, then the oldest. Otherwise, of those that have proved their ID, the oldest of the machine that has most. One
// that an operator approved, or whose exchange is under way, makes room for nobody.
func (s *members) makeRoomForStranger() bool {
	var announced, proved []string
	at, of := map[netip.Addr]int{}, map[string]int{}
	for key, m := range s.all {
		switch {
		case m.Pinned():
		case m.Proved():
			proved = append(proved, key)
			of[m.machine()]++
		default:
			announced = append(announced, key)
			at[m.Place()]++
		}
	}
	if len(announced)+len(proved) < maxStrangers {
		return true
	}
	hopeless := func() string {
		return least(s.all, announced, func(m *member) (int, bool) { return m.Hope(time.Now(), at[m.Place()]) })
	}
	busiest := func() string {
		return least(s.all, proved, func(m *member) (int, bool) {
			_, droppable := m.Hope(time.Now(), 0)
			return -of[m.machine()], droppable
		})
	}
	victim := ""
	if len(announced) > minAnnounced {
		victim = cmp.Or(hopeless(), busiest())
	} else {
		victim = cmp.Or(busiest(), hopeless())
	}
	if victim == "" {
		return false
	}
	m := s.all[victim]
	for key, e := range m.Entries() {
		s.missed.add(key, e)
	}
	s.forget(victim, m)
	return true
}

// least returns the droppable member with the lowest rank, the oldest of several; empty if there is none.
func least(all map[string]*member, keys []string, rank func(*member) (rank int, droppable bool)) (victim string) {
	lowest := 0
	for _, key := range keys {
		r, droppable := rank(all[key])
		if droppable && (victim == "" || r < lowest || r == lowest && all[key].Began().Before(all[victim].Began())) {
			victim, lowest = key, r
		}
	}
	return victim
}

// machine is what counts as one machine of a stranger that has proved its ID.
func (m *member) machine() string { return cmp.Or(m.from, connlimit.Source(m.Place()).String()) }

// missed are discovery entries, by source and key.
type missed map[string]discovery.Entry

// add keeps an entry for which there is no room. While there are too many, a random one is forgotten.
func (l missed) add(entry string, e discovery.Entry) {
	for other := range l {
		if len(l) < maxStrangers {
			break
		}
		delete(l, other)
	}
	l[entry] = e
}

// newsLevel keeps a flood of strangers out of the log.
func (s *members) newsLevel() slog.Level {
	if len(s.all) < maxStrangers/2 {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}
