package peerobjects

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
)

// An object that says where a cluster is, or who, and that is no peer yet, is a wish: a
// person's word that it may be one, as `rivulet peer` is.
//
//	written ──▶ asked (the fabric has the word: status.asked, status.id) ──▶ a peer's object
//	   ▲  nobody answers there: again, 5 s … 60 s       │ deleted: the word is taken back

// target is what the word is about, for comparison; empty if the object is none.
func (s Spec) target() string {
	if s.Address == "" {
		return s.ID
	}
	if s.ID == "" {
		return s.Address
	}
	return s.ID + " at " + s.Address
}

// asking is what has come of a wish in this run.
type asking struct {
	target string
	busy   bool
	id     peer.ID // who it is, once that is known
	err    error
	fails  int
	next   time.Time // not before
}

const firstAsk, lastAsk = 5 * time.Second, time.Minute

// follow brings an object on, that is no peer's, and shows where it stands.
func (m *mirror) follow(ctx context.Context, o *Peer, all map[peer.ID]View, taken map[peer.ID]*Peer) error {
	if !slices.Contains(o.Finalizers, Finalizer) { // what was said has to be taken back with it
		own := o.DeepCopyMeta()
		own.Finalizers = append(own.Finalizers, Finalizer)
		var err error
		if o, err = m.write(ctx, own, false); err != nil {
			return err
		}
	}
	target := o.Spec.target()
	m.requestsMu.Lock()
	a := m.requests[o.Name]
	if a == nil || a.target != target && !a.busy {
		a = &asking{target: target}
		m.requests[o.Name] = a
		if o.Status.Asked == target && all[peer.ID(o.Status.ID)].State == peer.Denied {
			a.id = peer.ID(o.Status.ID) // the no came later
		}
	}
	if a.id == "" && !a.busy && !time.Now().Before(a.next) {
		a.busy = true
		go m.request(ctx, o, a)
	}
	id, failed := a.id, a.err
	m.requestsMu.Unlock()

	want := Status{Asked: o.Status.Asked, ID: o.Status.ID}
	why, text := "Asking", "asking who is there"
	switch other, there := taken[id]; {
	case id != "" && there:
		why, text = "Duplicate", fmt.Sprintf("that cluster is the peer %s; delete one of the two objects", other.Name)
	case id != "":
		if v, ok := all[id]; ok {
			want = fresh(o.Status, o.Generation, v)
			want.Roles = nil // there are none yet
		}
		want.Asked, want.ID = target, string(id)
		want.ObservedGeneration = 0 // its roles are to be set when there is a peer
		why = ""
	case failed != nil:
		why, text = "NotReached", failed.Error()
	}
	if why != "" || want.Conditions == nil {
		if why == "" {
			why, text = "Asked", "the word is given; it is a peer as soon as both sides agree"
		}
		cond := metav1.Condition{Type: Ready, Status: metav1.ConditionFalse, ObservedGeneration: o.Generation, Reason: why, Message: text, LastTransitionTime: o.CreationTimestamp}
		want.Conditions = []metav1.Condition{cond}
	}
	return m.status(ctx, o, want)
}

// request gives the fabric the word, which takes seconds, and has everything looked at again.
func (m *mirror) request(ctx context.Context, o *Peer, a *asking) {
	v, err := m.ApproveAt(ctx, peer.ID(o.Spec.ID), o.Spec.Address)
	m.requestsMu.Lock()
	defer m.requestsMu.Unlock()
	a.busy, a.err = false, err
	if err == nil {
		a.id = v.ID
		if old := peer.ID(o.Status.ID); old != "" && old != a.id {
			if err := m.Withdraw(old); err != nil {
				m.Log.Warn("the word about another cluster, which this object has given before, stays", "object", o.Name, "id", old.Short(), "err", err)
			}
		}
		m.recorder.Eventf(reference(o), corev1.EventTypeNormal, "Asked", "as the spec says: cluster %s may be a peer", a.id.Short())
	} else {
		wait := min(firstAsk<<min(a.fails, 10), lastAsk)
		a.fails++
		a.next = time.Now().Add(wait)
		time.AfterFunc(wait, m.poke)
	}
	m.poke()
}

// undecided reports whether it is not known yet whom a wish is about: a new peer may be it.
func (m *mirror) undecided() bool {
	m.requestsMu.Lock()
	defer m.requestsMu.Unlock()
	for _, a := range m.requests {
		if a.busy {
			return true
		}
	}
	return false
}

// wished returns the object whose wish the cluster fulfils.
func (m *mirror) wished(id peer.ID, objects map[string]*Peer) *Peer {
	m.requestsMu.Lock()
	defer m.requestsMu.Unlock()
	for name, a := range m.requests {
		if o := objects[name]; o != nil && a.id == id && o.Labels[IDLabel] == "" && o.DeletionTimestamp == nil {
			return o
		}
	}
	for _, o := range objects {
		if o.Labels[IDLabel] == "" && o.DeletionTimestamp == nil && o.Spec.target() != "" && (o.Spec.ID == string(id) || o.Status.Asked == o.Spec.target() && o.Status.ID == string(id)) {
			return o
		}
	}
	return nil
}

// unwish takes the word back that an object has given.
func (m *mirror) unwish(ctx context.Context, o *Peer) error {
	m.requestsMu.Lock()
	id := peer.ID(o.Status.ID)
	if a := m.requests[o.Name]; a != nil {
		if a.busy {
			m.requestsMu.Unlock()
			return nil // its end has everything looked at again
		}
		if a.id != "" {
			id = a.id
		}
		delete(m.requests, o.Name)
	}
	m.requestsMu.Unlock()
	if o.Spec.target() == "" || id == "" {
		return nil
	}
	if err := m.Withdraw(id); err != nil {
		return fmt.Errorf("peers: take back the word of %s: %w", o.Name, err)
	}
	return nil
}
