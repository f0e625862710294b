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
	Code string // key-changed, waiting or trust-lan
	Peer string // for display: name and short ID; empty for trust-lan, which is about several
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
	if alarm, ok := byLANAlone(s.settings.policy().Mode, s.all); ok {
		out = append(out, alarm)
	}
	slices.SortFunc(out, func(a, b Alarm) int { return cmp.Compare(a.Peer+a.Code, b.Peer+b.Code) })
	return out
}

// byLANAlone returns the alarm about peers that would not become peers under the present trust.mode.
func byLANAlone(mode pairing.Mode, all map[string]*member) (Alarm, bool) {
	if mode != pairing.ModeGroup && mode != pairing.ModeAsk {
		return Alarm{}, false
	}
	called := map[string]int{}
	for _, m := range all {
		called[strings.ToLower(m.Title())]++
	}
	var names []string
	for _, m := range all {
		if !m.Pinned() || m.Record().Trust.How != peer.TrustLAN {
			continue
		}
		name := m.Handle()
		if called[strings.ToLower(name)] > 1 {
			name = m.ID().Short()
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return Alarm{}, false
	}
	slices.Sort(names)
	a := Alarm{Code: "trust-lan",
		Text: fmt.Sprintf("trust.mode is %s, and these peers remain by the LAN alone: %s", mode, some(names)),
		Cure: fmt.Sprintf("to end them: rivulet unpeer --lan; to keep one, as this: rivulet approve %s", names[0])}
	if mode == pairing.ModeGroup {
		a.Cure += "; one with the group's secret becomes a member by itself"
	}
	return a, true
}

// some lists at most eight of the names.
func some(names []string) string {
	const most = 8
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}
