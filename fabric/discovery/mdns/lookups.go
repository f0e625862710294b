package mdns

import (
	"time"

	"rivulet/fabric/peer"
)

// maxLookups is how many devices are asked for by name at a time: each question is
// sent to all, and a stranger can make us want to ask for any number.
const maxLookups = 16

// lookups are the devices that were asked for within the window. It is used by one
// goroutine.
type lookups struct {
	window time.Duration
	at     map[peer.ID]time.Time
}

// may reports whether to ask for the device now, and notes that it is done. Known
// ones are asked for however many strangers there are.
func (l *lookups) may(now time.Time, id peer.ID, known bool) bool {
	for other, at := range l.at {
		if now.Sub(at) > l.window {
			delete(l.at, other)
		}
	}
	if _, queried := l.at[id]; queried || !known && len(l.at) >= maxLookups {
		return false
	}
	l.at[id] = now
	return true
}
