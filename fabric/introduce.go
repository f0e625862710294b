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

// In a group, members tell each other of members: two that are on no common link
// learn of each other from one that both have as a peer, and prove the secret to
// each other through it. What is told is a hint, as all discovery is. Outside of
// a group nobody is told of anybody.

// neighbour is what a peer tells of another.
type neighbour struct {
	ID   peer.ID `json:"id"`
	Name string  `json:"name"`
}

const (
	maxNeighbours  = 256
	neighbourBeat  = 15 * time.Second // an empty line, so that a silent death is seen
	introductions  = "group"          // the source that rivulet peers shows
	neighboursPath = "/v1/neighbours"
)

// inGroup reports whether we are in a group and the peer is of it.
func (f *Fabric) inGroup(id peer.ID) bool {
	if f.policy().Mode != pairing.ModeGroup {
		return false
	}
	r, ok := f.record(id)
	return ok && r.Trust.How == peer.TrustGroup
}

// neighbours are the members of the group that we reach, but the asker.
func (f *Fabric) neighbours(asker peer.ID) []neighbour {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []neighbour{}
	for _, key := range sortedKeys(f.members) {
		m := f.members[key]
		if m.Pinned() && m.ID() != asker && m.State() == peer.Connected && m.Record().Trust.How == peer.TrustGroup && len(out) < maxNeighbours {
			out = append(out, neighbour{ID: m.ID(), Name: m.Record().Name})
		}
	}
	return out
}

// reportNeighbours answers with a line of JSON whenever our neighbours have changed.
func (f *Fabric) reportNeighbours(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	if !f.relays() || !f.inGroup(id) {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-group", Message: f.name() + " tells nobody of its peers", Cure: "this is for members of a group"})
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
		if http.NewResponseController(w).Flush() != nil || !f.inGroup(id) || !f.relays() {
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

// followNeighbours listens to each member of the group that is connected.
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

// listenTo takes in whom one member knows, until it ends or is not heard any more.
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

// introduced tells the difference between two lists as a source of discovery would.
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
		if _, pinned := f.record(n.ID); pinned && f.stateOf(n.ID) == peer.Connected {
			continue // nothing to do
		}
		f.discovered(source, discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(n.ID), ID: n.ID, Name: n.Name}})
	}
}

func (f *Fabric) stateOf(id peer.ID) peer.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[string(id)]; m != nil {
		return m.State()
	}
	return ""
}
