package fabric

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// maxStrangers bounds how many clusters that are no peers a LAN can make us remember.
const maxStrangers = 256

// fresh is how long a stranger is given to be tried before another takes its place.
const fresh = 10 * time.Second

// The functions below but real are called with mu held.

// room makes room for one more stranger, and reports whether there is some. Anybody
// on the LAN can invent clusters; they must not keep a real one from being tried. So
// one goes of whom there is least to hope: not one that has proved its ID, nor one
// that is being asked at this moment; before all one that was asked and did not
// answer, then one of an address at which many are said to be, then the oldest.
func (f *Fabric) room() bool {
	n := 0
	at := map[netip.Addr]int{}
	for _, m := range f.members {
		if !m.pinned {
			n++
			at[m.place()]++
		}
	}
	if n < maxStrangers {
		return true
	}
	victim, least := "", 0
	for key, m := range f.members {
		if m.pinned || m.proved || m.held || m.attempting {
			continue
		}
		hope := -at[m.place()]
		if m.reason == "" && time.Since(m.began) < fresh {
			hope += 2 * maxStrangers // not asked yet
		}
		if victim == "" || hope < least || hope == least && m.began.Before(f.members[victim].began) {
			victim, least = key, hope
		}
	}
	if victim == "" {
		return false
	}
	f.forget(victim)
	return true
}

// place is where the stranger is said to be.
func (m *member) place() netip.Addr {
	for _, e := range m.found {
		if len(e.Addrs) > 0 {
			return e.Addrs[0].Addr()
		}
	}
	return m.knocked.Addr()
}

// newsLevel keeps a flood of strangers out of the log.
func (f *Fabric) newsLevel() slog.Level {
	if len(f.members) < maxStrangers/2 {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// answered reports whether the error came from whoever holds the key of the ID
// asked for: the request was made over a connection that had proved it.
func answered(err error) bool {
	var e *rpc.Error
	return errors.As(err, &e) && e.Code != "not-on-link" && e.Code != "closed"
}

// real reports whether there is more to a cluster than an announcement.
func (f *Fabric) real(id peer.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[string(id)]
	return m != nil && (m.pinned || m.proved)
}

// sources are those that see the cluster now, by name. An entry's key is "source/key".
func (m *member) sources() (out []string) {
	for _, key := range sortedKeys(m.found) {
		name, _, _ := strings.Cut(key, "/")
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
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
	for entry, found := range m.found {
		if m.id == "" || found.ID != "" || !slices.Contains(found.Addrs, a) {
			continue
		}
		delete(m.found, entry)
		delete(f.known, entry)
		if !f.room() {
			return
		}
		n := f.member(entry, "")
		n.found[entry] = found
		f.due(n, true)
	}
}
