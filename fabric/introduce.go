package fabric

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// In a group, members report other members to each other: two clusters without a common link find each other through a
// common peer, and prove the secret to each other through it. Reports are hints, as all discovery is. Clusters outside
// of the group are neither reported nor receive reports.

// neighbour is a member that a peer reports.
type neighbour struct {
	ID   peer.ID `json:"id"`
	Name string  `json:"name"`
}

const (
	maxNeighbours  = 256
	neighbourBeat  = 15 * time.Second // an empty line, to detect a silent death
	introductions  = "group"          // the source shown by rivulet peers
	neighboursPath = "/v1/neighbours"
)

// inGroup reports whether this cluster is in a group and the peer is a member of it.
func (f *Fabric) inGroup(id peer.ID) bool {
	if f.settings.policy.get().Mode != pairing.ModeGroup {
		return false
	}
	r, ok := f.record(id)
	return ok && r.Trust.How == peer.TrustGroup
}

// neighbours are the connected members of the group, without the requesting one.
func (f *Fabric) neighbours(asker peer.ID) []neighbour {
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	out := []neighbour{}
	for _, m := range f.sorted() {
		if m.Pinned() && m.ID() != asker && m.State() == peer.Connected && m.Record().Trust.How == peer.TrustGroup && len(out) < maxNeighbours {
			out = append(out, neighbour{ID: m.ID(), Name: m.Record().Name})
		}
	}
	return out
}

// reportNeighbours answers with a line of JSON after each change of the neighbours.
func (f *Fabric) reportNeighbours(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	if !f.settings.relays.get() || !f.inGroup(id) {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-group", Message: f.settings.name.get() + " tells nobody of its peers", Cure: "this is for members of a group"})
		return
	}
	changed, stop := f.Changed()
	defer stop()
	beat := time.NewTicker(neighbourBeat)
	defer beat.Stop()
	w.WriteHeader(http.StatusOK)
	var reported []neighbour
	for {
		if now := f.neighbours(id); reported == nil || !slices.Equal(now, reported) {
			line, err := json.Marshal(now)
			if err != nil {
				return
			}
			if _, err := w.Write(append(line, '\n')); err != nil {
				return
			}
			reported = now
		}
		if http.NewResponseController(w).Flush() != nil || !f.inGroup(id) || !f.settings.relays.get() {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-beat.C:
			if _, err := w.Write([]byte("\n")); err != nil {
				return
			}
		}
	}
}

// followNeighbours follows the reports of each connected member of the group.
func (f *Fabric) followNeighbours(ctx context.Context) {
	changed, stop := f.Changed()
	defer stop()
	listening := map[peer.ID]bool{}
	ended := make(chan peer.ID)
	for {
		for _, l := range f.Links() {
			if l.State == peer.Connected && !listening[l.ID] && f.inGroup(l.ID) {
				listening[l.ID] = true
				f.loops.Go(func() {
					f.listenTo(ctx, l.ID)
					changes.Wait(ctx, f.cfg.Timing.Retry)
					select {
					case ended <- l.ID:
					case <-ctx.Done():
					}
				})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case id := <-ended:
			delete(listening, id)
		}
	}
}

// listenTo receives one member's reports, until that member leaves the group or is lost.
func (f *Fabric) listenTo(ctx context.Context, id peer.ID) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(3*neighbourBeat, cancel)
	defer silent.Stop()
	client, base, err := f.Client(id)
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+neighboursPath, nil)
	if err != nil {
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	source := introductions + "/" + string(id)
	var known []neighbour
	defer func() { f.introduced(source, known, nil) }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, rpc.MaxBody)
	for lines.Scan() {
		silent.Reset(3 * neighbourBeat)
		var now []neighbour
		if len(lines.Bytes()) == 0 {
			continue
		}
		if json.Unmarshal(lines.Bytes(), &now) != nil || len(now) > maxNeighbours {
			return
		}
		now = slices.DeleteFunc(now, func(n neighbour) bool { return !n.ID.Valid() || n.ID == f.cfg.Identity.ID })
		f.introduced(source, known, now)
		known = now
	}
}

// introduced reports the difference between two lists as discovery events.
func (f *Fabric) introduced(source string, was, now []neighbour) {
	for _, n := range was {
		if !slices.Contains(now, n) {
			f.discovered(source, discovery.Event{Kind: discovery.Removed, Entry: discovery.Entry{Key: string(n.ID), ID: n.ID}})
		}
	}
	for _, n := range now {
		if slices.Contains(was, n) {
			continue
		}
		if f.connected(n.ID) {
			continue // nothing to do
		}
		f.discovered(source, discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(n.ID), ID: n.ID, Name: n.Name}})
	}
}
