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

// An object with a cluster's address or ID that is no peer yet is a wish: an operator decision to approve it, the same
// as `rivulet peer`.
//
// 	written ──▶ asked (the fabric has the approval: status.asked, status.id) ──▶ a peer's object
// 	   ▲  no answer at the address: again, 5 s … 60 s   │ deleted: the approval is withdrawn

// target is the approved address or ID, for comparison; empty if there is none.
func (s Spec) target() string {
	if s.Address == "" {
		return s.ID
	}
	if s.ID == "" {
		return s.Address
	}
	return s.ID + " at " + s.Address
}

// asking is the progress of a wish in this run.
type asking struct {
	target string
	busy   bool
	id     peer.ID // the cluster, once it is known
	err    error
	fails  int
	next   time.Time // no attempt before
}

const firstAsk, lastAsk = 5 * time.Second, time.Minute

// follow handles an object without a peer, and shows its state.
func (m *mirror) follow(ctx context.Context, o *Peer, all map[peer.ID]View, taken map[peer.ID]*Peer) error {
	if !slices.Contains(o.Finalizers, Finalizer) { // its approval has to be withdrawn with it
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
			a.id = peer.ID(o.Status.ID) // denied later
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
		want.ObservedGeneration = 0 // its roles are applied once there is a peer
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

// request passes the approval to the fabric, which takes seconds, and triggers a sync.
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

// undecided reports whether the cluster of a wish is not known yet: it may be a new peer.
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

// unwish withdraws the approval by an object.
func (m *mirror) unwish(ctx context.Context, o *Peer) error {
	m.requestsMu.Lock()
	id := peer.ID(o.Status.ID)
	if a := m.requests[o.Name]; a != nil {
		if a.busy {
			m.requestsMu.Unlock()
			return nil // its end triggers a sync
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
