package clusterset

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
)

// member is a peer that takes part.
type member struct {
	stop context.CancelFunc
	// These are guarded by Set.mu.
	received bool // it has answered since this process started, or since it became a member
	exports  []Export
	fault    string // why it exports nothing here, or some exports do not count
}

// follow keeps a stream to each member until ctx ends.
func (s *Set) follow(ctx context.Context) {
	links, stop := s.Fabric().Changed()
	defer stop()
	setting, stop2 := s.setting.Changed()
	defer stop2()
	for {
		wanted := s.links()
		s.mu.Lock()
		for id, m := range s.peers {
			if _, ok := wanted[id]; !ok {
				m.stop()
				delete(s.peers, id)
				s.theirs.Notify()
			}
		}
		for id := range wanted {
			if s.peers[id] != nil {
				continue
			}
			ctx, stop := context.WithCancel(ctx)
			m := &member{stop: stop}
			s.peers[id] = m
			go s.read(ctx, id, m)
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, m := range s.peers {
				m.stop()
			}
			clear(s.peers) // Run may be called again
			return
		case <-links:
		case <-setting:
		}
	}
}

const firstRetry, lastRetry = 500 * time.Millisecond, 15 * time.Second

// read reads a member's exports until ctx ends. What it has exported stays while it does not answer.
func (s *Set) read(ctx context.Context, id peer.ID, m *member) {
	links, stop := s.Fabric().Changed()
	defer stop()
	for pause := (changes.Backoff{First: firstRetry, Longest: lastRetry}); ctx.Err() == nil; {
		if s.links()[id].State == peer.Connected {
			got, err := s.stream(ctx, id, m)
			if got {
				pause.Reset()
			}
			var refused *refusal
			s.set(m, func() {
				m.fault = err.Error()
				if errors.As(err, &refused) {
					m.received, m.exports = true, nil
				}
			})
			pause.Wait(ctx)
			continue
		}
		select { // at once when it is back
		case <-ctx.Done():
		case <-links:
		}
	}
}

func (s *Set) set(m *member, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.theirs.Notify()
}

// refusal is a peer's answer that it exports nothing to this cluster.
type refusal struct{ status int }

func (r *refusal) Error() string {
	if r.status == http.StatusNotFound {
		return "its version has no Services for other clusters; upgrade it"
	}
	return "it exports no Services to this cluster; there: rivulet config explain services.import"
}

// changeEvery and changeBurst bound the changes of one cluster that are applied.
const changeEvery, changeBurst = time.Second, 30

// stream reads one connection until it ends or is silent.
func (s *Set) stream(ctx context.Context, id peer.ID, m *member) (got bool, err error) {
	client, base, err := s.Fabric().Client(id)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errors.New("it is silent")) })
	defer watchdog.Stop()
	go s.whileConnected(ctx, id, cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/exports", nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusNotFound:
		return false, &refusal{resp.StatusCode}
	default:
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1024))
		return false, fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	most := maxLine
	if s.links()[id].Trust == peer.TrustLAN {
		most = maxStrangerLine
	}
	// Each change costs writes here: after a burst, one in changeEvery is read, with what has changed until then.
	pace := rate.NewLimiter(rate.Every(changeEvery), changeBurst)
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, most)
	for scan.Scan() {
		watchdog.Reset(silence)
		var line message
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			return got, fmt.Errorf("what it exports is not understood, are the versions too far apart? %w", err)
		}
		got = true
		if line.Exports == nil {
			continue
		}
		if err := pace.Wait(ctx); err != nil {
			return got, context.Cause(ctx)
		}
		valid, fault := checked(*line.Exports)
		s.set(m, func() {
			m.received, m.exports, m.fault = true, valid, ""
			if fault != nil {
				m.fault = fault.Error()
			}
		})
	}
	switch err := scan.Err(); {
	case errors.Is(err, bufio.ErrTooLong) && most < maxLine:
		return got, fmt.Errorf("it exports more than the %d KiB that are taken of a neighbour whom nobody approved; here: rivulet approve %s", most>>10, id.Short())
	case err != nil:
		return got, err
	}
	return got, errors.New("it has closed the stream")
}

// whileConnected cancels when the peer is lost: its end of the connection may be gone without a word.
func (s *Set) whileConnected(ctx context.Context, id peer.ID, cancel context.CancelCauseFunc) {
	links, stop := s.Fabric().Changed()
	defer stop()
	for s.links()[id].State == peer.Connected {
		select {
		case <-ctx.Done():
			return
		case <-links:
		}
	}
	cancel(errors.New("it does not answer"))
}

// encode is the line of these exports.
func encode(all []Export) []byte {
	if all == nil {
		all = []Export{} // null would be a heartbeat
	}
	line, err := json.Marshal(message{Exports: &all})
	if err != nil {
		return []byte("{}\n") // an Export always marshals
	}
	return append(line, '\n')
}

// contributions are what all members export, with the endpoints in their prefixes in this cluster's view and no others,
// and the faults, by cluster; complete: all of them were heard.
func (s *Set) contributions() (out []contribution, faults map[peer.ID]string, complete bool) {
	setting, links := s.Setting(), s.links()
	s.mu.Lock()
	defer s.mu.Unlock()
	faults, complete = map[peer.ID]string{}, len(links) > 0 // without any, they may not be read yet
	for id := range links {
		complete = complete && s.peers[id] != nil && s.peers[id].received
	}
	for id, m := range s.peers {
		if m.fault != "" {
			faults[id] = m.fault
		}
		for _, e := range m.exports {
			if shared(setting, e.Namespace) {
				e.Slices = translated(e.Slices, links[id])
				out = append(out, contribution{Cluster: string(id), Export: e})
			}
		}
	}
	return out, faults, complete
}

func translated(all []Slice, l peer.Link) (out []Slice) {
	for _, s := range all {
		here := Slice{Ports: s.Ports}
		for _, e := range s.Endpoints {
			var ok bool
			if e.Address, ok = peer.Translate(e.Address, l.PeerCIDR, l.PeerMappedCIDR); ok {
				here.Endpoints = append(here.Endpoints, e)
			}
		}
		if len(here.Endpoints) > 0 {
			out = append(out, here)
		}
	}
	return out
}
