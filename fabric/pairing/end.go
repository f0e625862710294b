package pairing

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// EndPath is the route for ending a peering.
const EndPath = "/v1/peering/end"

// End is the body of POST /v1/peering/end. The answer is 204 or an error.
type End struct {
	Versions []int   `json:"versions"`
	ID       peer.ID `json:"id"`
	// Sequence is one of the sender's messages: an end older than another message of the sender is ignored.
	Sequence uint64 `json:"sequence"`
}

// Farewell returns the end of the peering for a cluster, with the sequences by which its old messages are recognized
// later. Forget, which may be nil, removes the peer. No message of the peer is processed between reading the sequences
// and the end of forget.
func (p *Party) Farewell(id peer.ID, forget func(heard, skip uint64) error) (End, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.numbers(id)
	p.count++
	e := End{Versions: Versions, ID: p.Cluster.Self().ID, Sequence: p.issued(n)}
	if forget == nil {
		return e, nil
	}
	return e, forget(n.received, n.skip)
}

// SendEnd ends the peering at the cluster at an address.
func SendEnd(ctx context.Context, id rpc.Identity, want peer.ID, addr netip.AddrPort, dial Dial, e End) error {
	c, _, err := open(ctx, id, want, addr, dial)
	if err != nil {
		return err
	}
	defer c.Close()
	return post(ctx, c, addr, EndPath, e, nil)
}

// Reach reports whether the cluster itself answers at an address.
func Reach(ctx context.Context, id rpc.Identity, want peer.ID, addr netip.AddrPort, dial Dial) error {
	c, _, err := open(ctx, id, want, addr, dial)
	if err == nil {
		c.Close()
	}
	return err
}

// EndHandler receives the end of a peering. It calls ended if the end is newer than all other messages of that peer;
// ended returns after the change is stored.
func (p *Party) EndHandler(ended func(id peer.ID, heard, skip uint64) error) http.Handler {
	return fromStrangers("say goodbye", func(w http.ResponseWriter, _ *http.Request, from Sender, body json.RawMessage) {
		var e End
		if err := json.Unmarshal(body, &e); err != nil || e.ID != from.ID || e.Sequence == 0 || e.Sequence >= maxSequence {
			rpc.Fail(w, http.StatusBadRequest, refuse("bad-message", "the farewell is not understood"))
			return
		}
		if err := p.end(from, e, ended); err != nil {
			rpc.Fail(w, http.StatusInternalServerError, refuse("store", "the farewell cannot be kept: %v", err))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

func (p *Party) end(from Sender, e End, ended func(id peer.ID, heard, skip uint64) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.numbers(from.ID)
	if _, known := p.Cluster.Record(from.ID); !known || e.Sequence <= n.received {
		return nil
	}
	if err := ended(from.ID, e.Sequence, n.skip); err != nil {
		return err
	}
	n.received = e.Sequence
	return nil
}
