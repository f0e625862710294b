package fabric

import (
	"context"
	"net/netip"
	"time"

	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/fabric/trust"
)

// Several devices can be nodes of one cluster (docs/design/nodes.md). They use the same exchange, keys and tunnel as
// peers, and are no peers: a record's trust distinguishes them.

// Join brings a token to the cluster that made it. If it returns no error, this device may be a node of that cluster;
// it stays a cluster of its own until its caller changes that. A peer of that cluster may join it, too.
func (o *operator) Join(ctx context.Context, c trust.Code) error {
	if _, known := o.members.record(c.ID); !known {
		v, refusal, err := o.try(ctx, c, true, peer.TrustServer)
		if err == nil && v.State.Apart() {
			err = notWorked{v.Reason, refusal}
		}
		return err
	}
	defer o.admission.use(c, true)()
	if err := o.exchangeNow(ctx, c.ID); err != nil {
		return err
	}
	return o.party.Change(c.ID, func(r *peer.Record) { r.Trust = peer.Trust{How: peer.TrustServer, At: time.Now()} })
}

// notWorked is the end of a try to join; refusal is nil if the other side has not answered.
type notWorked struct {
	reason  string
	refusal error
}

func (e notWorked) Error() string { return "the token has not worked: " + e.reason }
func (e notWorked) Unwrap() error { return e.refusal }

// exchangeNow waits for an exchange with the peer that begins now.
func (o *operator) exchangeNow(ctx context.Context, id peer.ID) error {
	changed, stop := o.members.Changed()
	defer stop()
	before := -1
	for {
		o.members.mu.Lock()
		m := o.members.byID(id)
		if m == nil || !m.Pinned() {
			o.members.mu.Unlock()
			return noPeer(id.Short())
		}
		if before < 0 && !m.Attempting() {
			before = m.Attempts()
			o.members.do(m, m.Due(time.Now(), true))
		}
		done := before >= 0 && m.Attempts() > before && !m.Attempting()
		refusal, _ := m.Refusal()
		o.members.mu.Unlock()
		if done {
			if pairing.Code(refusal) != "" {
				return refusal
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Nodes are the records of this cluster's other nodes, by ID.
func (s *members) Nodes() (out []peer.Record) {
	for _, r := range s.records() {
		if r.Trust.Node() {
			out = append(out, r)
		}
	}
	return out
}

// Worker is the record of a worker of this cluster; an *rpc.Error for any other ID.
func (s *members) Worker(id peer.ID) (peer.Record, error) {
	r, ok := s.record(id)
	if !ok || r.Trust.How != peer.TrustWorker {
		return peer.Record{}, &rpc.Error{Code: "no-node", Message: "this device is no node of " + s.settings.name.get(), Cure: "make a token there: rivulet token create; here: rivulet join TOKEN"}
	}
	return r, nil
}

// SetNode records the name of a node of this cluster, and the prefixes that are reached through it.
func (o *operator) SetNode(id peer.ID, name string, behind []netip.Prefix) error {
	return o.party.Change(id, func(r *peer.Record) {
		if r.Trust.Node() {
			r.Node, r.Behind = name, behind
		}
	})
}

// SetStandby records whether a worker may become this cluster's server.
func (o *operator) SetStandby(id peer.ID, may bool) error {
	return o.party.Change(id, func(r *peer.Record) { r.Standby = may && r.Trust.How == peer.TrustWorker })
}
