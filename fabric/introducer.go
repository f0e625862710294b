package fabric

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/discovery"
	"rivulet/fabric/pairing"
	"rivulet/fabric/panics"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// In a group, members report other members to each other: two clusters without a common link find each other through a
// common peer, and prove the secret to each other through it. Reports are hints, as all discovery is. Clusters outside
// of the group are neither reported nor receive reports.

// introducer reports the members of the group to each other, and follows their reports.
type introducer struct {
	self      peer.ID
	settings  *settings
	members   *members
	clients   *clients
	exchanger *exchanger    // processes the reports
	retry     time.Duration // the pause before the reports of a member are followed again
	log       *slog.Logger
}

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
func (i *introducer) inGroup(id peer.ID) bool {
	if i.settings.policy().Mode != pairing.ModeGroup {
		return false
	}
	r, ok := i.members.record(id)
	return ok && r.Trust.How == peer.TrustGroup
}

// neighbours are the connected members of the group, without the requesting one.
func (i *introducer) neighbours(asker peer.ID) []neighbour {
	i.members.mu.Lock()
	defer i.members.mu.Unlock()
	out := []neighbour{}
	for _, m := range i.members.sorted() {
		if m.Pinned() && m.ID() != asker && m.State() == peer.Connected && m.Record().Trust.How == peer.TrustGroup && len(out) < maxNeighbours {
			out = append(out, neighbour{ID: m.ID(), Name: m.Record().Name})
		}
	}
	return out
}

// report answers with a line of JSON after each change of the neighbours.
func (i *introducer) report(w http.ResponseWriter, r *http.Request) {
	id, _ := rpc.PeerID(r)
	if !i.settings.relays.get() || !i.inGroup(id) {
		rpc.Fail(w, http.StatusForbidden, &rpc.Error{Code: "no-group", Message: i.settings.name.get() + " tells nobody of its peers", Cure: "this is for members of a group"})
		return
	}
	changed, stop := i.members.Changed()
	defer stop()
	beat := time.NewTicker(neighbourBeat)
	defer beat.Stop()
	w.WriteHeader(http.StatusOK)
	var reported []neighbour
	for {
		if now := i.neighbours(id); reported == nil || !slices.Equal(now, reported) {
			line, err := json.Marshal(now)
			if err != nil {
				return
			}
			if _, err := w.Write(append(line, '\n')); err != nil {
				return
			}
			reported = now
		}
		if http.NewResponseController(w).Flush() != nil || !i.inGroup(id) || !i.settings.relays.get() {
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

// run follows the reports of each connected member of the group.
func (i *introducer) run(ctx context.Context) {
	changed, stop := i.members.Changed()
	defer stop()
	listening := map[peer.ID]bool{}
	ended := make(chan peer.ID)
	for {
		for _, l := range i.members.Links() {
			if l.State == peer.Connected && !listening[l.ID] && i.inGroup(l.ID) {
				listening[l.ID] = true
				i.members.loops.Go(func() {
					if err := panics.Call(func() error { i.listenTo(ctx, l.ID); return nil }); err != nil {
						i.log.Error("the reports of a peer are not followed for a while", "id", l.ID.Short(), "err", err)
					}
					changes.Wait(ctx, i.retry)
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
func (i *introducer) listenTo(ctx context.Context, id peer.ID) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silent := time.AfterFunc(3*neighbourBeat, cancel)
	defer silent.Stop()
	client, base, err := i.clients.Client(id)
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
	var told, known []neighbour // reported, and introduced
	defer func() { i.introduced(source, known, nil) }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, rpc.MaxBody)
	for lines.Scan() {
		silent.Reset(3 * neighbourBeat)
		if len(lines.Bytes()) > 0 {
			var now []neighbour
			if json.Unmarshal(lines.Bytes(), &now) != nil || len(now) > maxNeighbours {
				return
			}
			told = slices.DeleteFunc(now, func(n neighbour) bool { return !n.ID.Valid() || n.ID == i.self })
		}
		now := due(told, known, i.members.connected) // at each beat, too: a direct way may be lost
		i.introduced(source, known, now)
		known = now
	}
}

// due are the reported members to introduce: those that were, and those that are not connected.
func due(told, known []neighbour, connected func(peer.ID) bool) []neighbour {
	return slices.DeleteFunc(slices.Clone(told), func(n neighbour) bool { return !slices.Contains(known, n) && connected(n.ID) })
}

// introduced reports the difference between two lists as discovery events.
func (i *introducer) introduced(source string, was, now []neighbour) {
	for _, n := range was {
		if !slices.Contains(now, n) {
			i.exchanger.discovered(source, discovery.Event{Kind: discovery.Removed, Entry: discovery.Entry{Key: string(n.ID), ID: n.ID}})
		}
	}
	for _, n := range now {
		if !slices.Contains(was, n) {
			i.exchanger.discovered(source, discovery.Event{Kind: discovery.Added, Entry: discovery.Entry{Key: string(n.ID), ID: n.ID, Name: n.Name}})
		}
	}
}
