package fabric

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Clock compares this device's time with that of peers, in the answers to pings. Pings are authenticated by pinned
// keys, so this works while the clock is too wrong for certificates.
type Clock interface {
	// Reading is the time of this device and whether a time service synchronizes it.
	Reading() (now time.Time, synchronized bool)
	// Received reports the peer's time in the middle of a round trip that has just ended. It must not block.
	Received(id, name string, now time.Time, synchronized bool, roundTrip time.Duration)
}

// timeHeader is in the answer to a ping: nanoseconds since 1970, followed by "synchronized" if a time service keeps the
// clock.
const timeHeader = "Rivulet-Time"

const synchronizedWord = "synchronized"

// answer answers a ping with this device's time.
func (p *pinger) answer(w http.ResponseWriter, r *http.Request) {
	if id, ok := rpc.PeerID(r); ok {
		p.members.mu.Lock()
		if m := p.members.byID(id); m != nil {
			if m.State() != peer.Connected && time.Since(m.pings.LastReceived()) > p.timing.Probe {
				changes.Poke(m.pingKick) // the link works again
			}
			m.pings.Received(time.Now())
		}
		p.members.mu.Unlock()
	}
	if c := p.clock; c != nil {
		now, synchronized := c.Reading()
		w.Header().Set(timeHeader, formatTime(now, synchronized))
	}
	w.WriteHeader(http.StatusNoContent)
}

// receiveTime reports the peer's time to the Clock. Older peers do not send it.
func (p *pinger) receiveTime(l peer.Link, h http.Header, roundTrip time.Duration) {
	if now, synchronized, ok := parseTime(h.Get(timeHeader)); ok && p.clock != nil {
		p.clock.Received(string(l.ID), l.Name, now, synchronized, roundTrip)
	}
}

func formatTime(now time.Time, synchronized bool) string {
	s := strconv.FormatInt(now.UnixNano(), 10)
	if synchronized {
		s += " " + synchronizedWord
	}
	return s
}

func parseTime(s string) (now time.Time, synchronized, ok bool) {
	number, word, _ := strings.Cut(s, " ")
	ns, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return time.Time{}, false, false
	}
	return time.Unix(0, ns), word == synchronizedWord, true
}
