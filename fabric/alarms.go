package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
)

// Alarm is a suspicious fact about one cluster, for an operator.
type Alarm struct {
	Code string // key-changed or waiting
	Peer string // for display: name and short ID
	Text string
	Cure string
}

// Alarms returns what is suspicious or waits for an operator, by peer.
func (s *members) Alarms() (out []Alarm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peers := s.peers()
	for _, m := range s.all {
		who := fmt.Sprintf("%s (%s)", m.Title(), m.ID().Short())
		refusal, mine := m.Refusal()
		switch {
		case m.Pinned() && m.Record().Trust.Node(): // nodes have the cluster's name
		case m.Pinned():
			for _, o := range peers {
				// The older of two with one name: it does not answer, and another one came.
				if o != m && !o.Record().Trust.Node() && strings.EqualFold(o.Record().Name, m.Record().Name) && o.Record().Trust.At.Before(m.Record().Trust.At) && o.State() != peer.Connected {
					out = append(out, Alarm{Code: "key-changed", Peer: who,
						Text: fmt.Sprintf("%s has come with another key than the %s (%s) that is trusted and does not answer; it is a peer of its own, and nothing of the other's is its", m.Record().Name, o.Record().Name, o.ID().Short()),
						Cure: fmt.Sprintf("if the device was set up anew: rivulet unpeer --force %s; if it was not, somebody has taken its name: rivulet deny %s", o.ID().Short(), m.ID().Short())})
				}
			}
		case pairing.Code(refusal) == "name-taken":
			old := s.namesake(m.Title(), m.ID())
			out = append(out, Alarm{Code: "key-changed", Peer: who,
				Text: fmt.Sprintf("it comes under the name of a peer that is trusted (%s), with another key; no traffic goes to it", old.Short()),
				Cure: fmt.Sprintf("if the device was set up anew: rivulet unpeer --force %s; rivulet approve %s; if it was not: rivulet deny %s", old.Short(), m.ID().Short(), m.ID().Short())})
		case m.State() == peer.Waiting && mine:
			out = append(out, Alarm{Code: "waiting", Peer: who, Text: "it wants to be a peer", Cure: fmt.Sprintf("rivulet approve %s, or rivulet deny %s", m.Handle(), m.Handle())})
		}
	}
	slices.SortFunc(out, func(a, b Alarm) int { return cmp.Compare(a.Peer+a.Code, b.Peer+b.Code) })
	return out
}
