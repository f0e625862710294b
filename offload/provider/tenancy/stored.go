package tenancy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"rivulet/fabric/peer"
)

// The storage of consumers' objects. The engine keeps each object in memory several times (measured: seven times), so
// the bound depends on the memory.
const (
	// One consumer's objects may take 1/storePart of the memory, as JSON; those of all consumers storeAll times that.
	storePart, storeAll = 64, 2
	minStore, maxStore  = 8 << 20, 256 << 20
	// countGap is the least time between two counts of one consumer's objects; counts may take at most 1/countShare of
	// the time. countEvery is when written objects are counted although there is room.
	countGap, countShare = 2 * time.Second, 20
	countEvery           = time.Minute
)

// storeBound is what one consumer may store, in bytes, on a device with that memory.
func storeBound(memory uint64) int64 {
	if memory == 0 {
		return minStore
	}
	return int64(min(max(memory/storePart, minStore), maxStore))
}

// store bounds the size of the objects in each consumer's twins, in bytes or in what count counts. They are counted by listing them; each write is added
// until the next count, even if it replaces something. So deletions by anybody are found at the next count, and
// concurrent requests never get more than there is room for.
type store struct {
	bound, all int64
	count      func(context.Context, peer.ID) (int64, error)
	full       fullError // without the amounts

	mu sync.Mutex
	by map[peer.ID]*holding
}

type holding struct {
	counted int64 // as of the last count
	since   int64 // written since that count began
	flying  int64 // admitted, without an answer yet
	known   bool  // it was counted once
	begun   time.Time
	took    time.Duration
	busy    chan struct{} // closed when the count under way is over; nil if none is
	failed  error
}

func newStore(memory uint64, count func(context.Context, peer.ID) (int64, error)) *store {
	bound := storeBound(memory)
	return &store{bound: bound, all: storeAll * bound, count: count, by: map[peer.ID]*holding{}, full: fullError{
		text: "the objects of your cluster take %.1f MiB here, and may take %.1f MiB; delete some, or have part of them elsewhere: rivulet unoffload NS", unit: 1 << 20}}
}

// fullError means that there is no room for an object.
type fullError struct {
	text        string // with a place for held and one for bound, both in units
	unit        float64
	held, bound int64
}

func (e *fullError) Error() string {
	return fmt.Sprintf(e.text, float64(e.held)/e.unit, float64(e.bound)/e.unit)
}

func (h *holding) held() int64 { return h.counted + h.since + h.flying }

// mine is what a consumer may store: its bound, or what others leave if that is less, but always an equal part of the
// total. mu is held.
func (s *store) mine(id peer.ID) int64 {
	left := s.all
	for other, h := range s.by {
		if other != id {
			left -= h.held()
		}
	}
	return min(s.bound, max(left, s.all/int64(len(s.by))))
}

func (s *store) of(id peer.ID) *holding {
	h := s.by[id]
	if h == nil {
		h = &holding{}
		s.by[id] = h
	}
	return h
}

// fullFor is the error of a consumer for which there is no room. mu is held.
func (s *store) fullFor(id peer.ID, h *holding) *fullError {
	full := s.full
	full.held, full.bound = h.held(), s.mine(id)
	return &full
}

// admit reserves n bytes. settle has to be called with the actual size when the write is over. Without room the error
// is a *fullError.
func (s *store) admit(ctx context.Context, id peer.ID, n int64) (settle func(wrote int64), err error) {
	for {
		s.mu.Lock()
		h := s.of(id)
		if h.known && h.held()+n <= s.mine(id) {
			h.flying += n
			s.mu.Unlock()
			return func(wrote int64) {
				s.mu.Lock()
				defer s.mu.Unlock()
				h.flying -= n
				h.since += wrote
			}, nil
		}
		full := s.fullFor(id, h)
		if h.busy == nil && h.known && now().Sub(h.begun) < max(countGap, countShare*h.took) {
			s.mu.Unlock()
			return nil, full
		}
		busy := s.recount(id, h)
		s.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		s.mu.Lock()
		failed, known, fits := h.failed, h.known, h.held()+n <= s.mine(id)
		full = s.fullFor(id, h)
		s.mu.Unlock()
		switch {
		case failed != nil:
			return nil, failed
		case known && !fits:
			return nil, full
		}
	}
}

// recount begins a count, unless one is under way. mu is held.
func (s *store) recount(id peer.ID, h *holding) (over <-chan struct{}) {
	if h.busy != nil {
		return h.busy
	}
	busy := make(chan struct{})
	h.busy, h.begun = busy, now()
	before := h.since
	go func() {
		// It serves all waiting requests, so it does not end with the context of one.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		counted, err := s.count(ctx, id)
		s.mu.Lock()
		defer s.mu.Unlock()
		h.took, h.failed, h.busy = now().Sub(h.begun), err, nil
		if err == nil {
			h.counted, h.known = counted, true
			h.since -= before
		}
		close(busy)
	}()
	return busy
}

// run counts what has been written from time to time, until ctx ends: controllers make further objects from it.
// Consumers that are gone have nothing.
func (s *store) run(ctx context.Context, here func(peer.ID) bool, changed func()) {
	tick := time.NewTicker(countEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var wait []<-chan struct{}
		s.mu.Lock()
		for id, h := range s.by {
			switch {
			case h.flying > 0 || h.busy != nil: // counted anyway, or the next time
			case !here(id):
				delete(s.by, id)
			case h.since > 0 && now().Sub(h.begun) >= countShare*h.took:
				wait = append(wait, s.recount(id, h))
			}
		}
		s.mu.Unlock()
		for _, over := range wait {
			<-over
		}
		if len(wait) > 0 {
			changed()
		}
	}
}

// over reports whether the consumer is above its bound.
func (s *store) over(id peer.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.by[id]
	return h != nil && h.known && h.counted > s.mine(id)
}

// sizes is the size in bytes of all of the consumer's objects in its twins and its virtual clusters', as JSON.
func (t *Tenancy) sizes(ctx context.Context, consumer peer.ID) (sum int64, err error) {
	twins, err := ofAccount(ctx, t, consumer)
	if err != nil {
		return 0, err
	}
	for _, ns := range twins {
		for _, path := range written() {
			body, err := t.lists.Get().AbsPath(fmt.Sprintf(path, ns.Name)).SetHeader("Accept", "application/json").Stream(ctx)
			if err != nil {
				return 0, fmt.Errorf("tenancy: objects of twin %s: %w", ns.Name, err)
			}
			n, err := io.Copy(io.Discard, body)
			if err = errors.Join(err, body.Close()); err != nil {
				return 0, fmt.Errorf("tenancy: objects of twin %s: %w", ns.Name, err)
			}
			sum += n
		}
	}
	return sum, nil
}

// written are the paths of lists of the kinds that Role lets a consumer create.
func written() (paths []string) {
	for _, r := range rules() {
		if !slices.Contains(r.Verbs, "create") {
			continue
		}
		base := "/apis/" + r.APIGroups[0] + "/v1"
		if r.APIGroups[0] == "" {
			base = "/api/v1"
		}
		for _, resource := range r.Resources {
			if !strings.Contains(resource, "/") {
				paths = append(paths, base+"/namespaces/%s/"+resource)
			}
		}
	}
	return paths
}
