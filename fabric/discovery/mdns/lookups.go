package mdns

import (
	"time"

	"rivulet/fabric/peer"
)

// maxLookups is how many devices are queried by name at a time: each query is multicast, and strangers can cause any
// number of them.
const maxLookups = 16

// lookups are the devices that were queried within the window. It is used by one goroutine.
type lookups struct {
	window time.Duration
	at     map[peer.ID]time.Time
}

// may reports whether to query the device now, and counts the query. Strangers do not reduce the queries for known
// ones.
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
