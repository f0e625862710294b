package fabric

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// Policy is which clusters become peers without an operator decision. The zero Policy is none.
type Policy struct {
	Mode pairing.Mode
	// Why is the reason that strangers receive with ModeClosed.
	Why string
	// Secret is the group's, for ModeGroup.
	Secret string
}

// admit evaluates a stranger with all local facts.
func (f *Fabric) admit(s pairing.Stranger) (string, error) {
	if f.leaving.Load() {
		return "", leavingError(f.settings.name.get())
	}
	id := s.From.ID
	facts := f.facts(id)
	facts.Proved, facts.OnLink = s.Proved, !s.From.Inside && f.onLink(s.From.Addr)
	if len(s.Message.Invite) > 0 && !s.Starter {
		facts.HasInvite, facts.InviteError = true, f.decisions.Redeem(s.Message.Invite, id, time.Now())
	}
	f.members.mu.Lock()
	facts.NameOf = f.namesake(s.Message.Name, id)
	f.members.mu.Unlock()
	how, err := pairing.Evaluate(facts, s.Message.Name, s.From.Addr)
	if err == nil && how == peer.TrustLAN {
		err = f.makeRoom(s.From.Addr, s.Message.Name)
	}
	return how, err
}

func (f *Fabric) facts(id peer.ID) pairing.Facts {
	p := f.settings.policy.get()
	facts := pairing.Facts{Mode: p.Mode, Why: cmp.Or(p.Why, "nothing says whom to trust"), Here: f.settings.name.get()}
	if y, ok := f.decisions.Approved(id); ok {
		facts.Approved = y.How
	}
	if left, ok := f.decisions.Revocation(id); ok {
		facts.Denied, facts.Was = left.Denied, left.WasPeer
	}
	return facts
}

func leavingError(name string) *rpc.Error {
	return &rpc.Error{Code: "leaving", Message: name + " is being reset", Cure: "wait until it is back"}
}

// mayCall returns why this cluster does not start the exchange with a stranger: an exchange would make the stranger
// trust this cluster, and reveal its identity.
func (f *Fabric) mayCall(id peer.ID, name string, onLink bool, at netip.Addr) error {
	facts := f.facts(id)
	facts.OnLink = onLink
	switch {
	case f.leaving.Load():
		return leavingError(f.settings.name.get())
	case facts.Approved != "" || facts.Mode == pairing.ModeGroup && !facts.Denied:
		return nil // the answer is evaluated
	}
	f.members.mu.Lock()
	facts.NameOf = f.namesake(name, id) // as far as an announcement can be believed
	f.members.mu.Unlock()
	how, err := pairing.Evaluate(facts, cmp.Or(name, "it"), at)
	if err == nil && how == peer.TrustLAN {
		_, err = f.roomFor(at, cmp.Or(name, "it"))
	}
	if e := new(rpc.Error); errors.As(err, &e) && (e.Code == "denied" || e.Code == "unpeered") {
		e.Cure = "rivulet peer " + cmp.Or(name, id.Short()) + " takes that back"
	}
	return err
}

// Alarm is a suspicious fact about one cluster, for an operator.
type Alarm struct {
	Code string // key-changed or waiting
	Peer string // for display: name and short ID
	Text string
	Cure string
}

// Alarms returns what is suspicious or waits for an operator, by peer.
func (f *Fabric) Alarms() (out []Alarm) {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	for _, m := range f.members.all {
		who := fmt.Sprintf("%s (%s)", m.Title(), m.ID().Short())
		refusal, mine := m.Refusal()
		switch {
		case m.Pinned():
			for _, o := range f.members.all {
				// The older of two with one name: it does not answer, and another one came.
				if o != m && o.Pinned() && strings.EqualFold(o.Record().Name, m.Record().Name) && o.Record().Trust.At.Before(m.Record().Trust.At) && o.State() != peer.Connected {
					out = append(out, Alarm{Code: "key-changed", Peer: who,
						Text: fmt.Sprintf("%s has come with another key than the %s (%s) that is trusted and does not answer; it is a peer of its own, and nothing of the other's is its", m.Record().Name, o.Record().Name, o.ID().Short()),
						Cure: fmt.Sprintf("if the device was set up anew: rivulet unpeer --force %s; if it was not, somebody has taken its name: rivulet deny %s", o.ID().Short(), m.ID().Short())})
				}
			}
		case pairing.Code(refusal) == "name-taken":
			old := f.namesake(m.Title(), m.ID())
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

// memory is the Notes of a fabric without a store.
type memory struct {
	mu    sync.Mutex
	blobs map[string][]byte
}

func (m *memory) Note(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blobs[name], nil
}

func (m *memory) PutNote(name string, blob []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[name] = blob
	return nil
}

var _ trust.Notes = (*memory)(nil)
