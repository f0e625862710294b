package fabric

import (
	"log/slog"
	"net/netip"
	"time"
)

// maxStrangers bounds the clusters that are no peers.
const maxStrangers = 256

// The functions below are called with mu held.

// makeRoomForStranger makes room for one more stranger, and reports whether there is some. Anybody on the LAN can
// invent clusters; these must not keep a real one from being tried. It removes the stranger with least hope, never one
// that has proved its ID or whose exchange is under way: first one that did not answer, then one of an address with
// many others, then the oldest.
func (s *members) makeRoomForStranger() bool {
	n := 0
	at := map[netip.Addr]int{}
	for _, m := range s.all {
		if !m.Pinned() {
			n++
			at[m.Place()]++
		}
	}
	if n < maxStrangers {
		return true
	}
	victim, least := "", 0
	for key, m := range s.all {
		hope, droppable := m.Hope(time.Now(), at[m.Place()])
		if droppable && (victim == "" || hope < least || hope == least && m.Began().Before(s.all[victim].Began())) {
			victim, least = key, hope
		}
	}
	if victim == "" {
		return false
	}
	s.forget(victim, s.all[victim])
	return true
}

// newsLevel keeps a flood of strangers out of the log.
func (s *members) newsLevel() slog.Level {
	if len(s.all) < maxStrangers/2 {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}
