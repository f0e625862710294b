package fabric

import (
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// maxStrangers bounds how many clusters that are no peers a LAN can make us remember.
const maxStrangers = 256

// The functions below but real are called with mu held.

// makeRoomForStranger makes makeRoomForStranger for one more stranger, and reports whether there is some. Anybody
// on the LAN can invent clusters; they must not keep a real one from being tried. So
// one goes of whom there is least to hope: not one that has proved its ID, nor one
// that is being asked at this moment; before all one that was asked and did not
// answer, then one of an address at which many are said to be, then the oldest.
func (f *Fabric) makeRoomForStranger() bool {
	n := 0
	at := map[netip.Addr]int{}
	for _, m := range f.members {
		if !m.Pinned() {
			n++
			at[m.Place()]++
		}
	}
	if n < maxStrangers {
		return true
	}
	victim, least := "", 0
	for key, m := range f.members {
		hope, droppable := m.Hope(time.Now(), at[m.Place()])
		if droppable && (victim == "" || hope < least || hope == least && m.Began().Before(f.members[victim].Began())) {
			victim, least = key, hope
		}
	}
	if victim == "" {
		return false
	}
	f.forget(victim)
	return true
}

// newsLevel keeps a flood of strangers out of the log.
func (f *Fabric) newsLevel() slog.Level {
	if len(f.members) < maxStrangers/2 {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// real reports whether there is more to a cluster than an announcement.
func (f *Fabric) real(id peer.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[string(id)]
	return m != nil && (m.Pinned() || m.Proved())
}

// anotherAt parts an address that somebody wrote down (it has no ID) from the cluster
// that was there, if e says that another one is there now: it is asked who it is.
func (f *Fabric) anotherAt(m *member, a netip.AddrPort, e error) {
	var wrong *rpc.WrongPeerError
	if !errors.As(e, &wrong) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for entry, ok := m.Unnamed(a); ok; entry, ok = m.Unnamed(a) {
		delete(f.known, entry)
		if !f.makeRoomForStranger() {
			m.Gone(entry)
			continue
		}
		n := f.member(entry, "")
		m.Split(entry, n.Machine)
		f.do(n, n.Due(time.Now(), true))
	}
}
