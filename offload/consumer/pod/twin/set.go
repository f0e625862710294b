package twin

import (
	"maps"
	"slices"
	"sync"
)

// Set are the watched twins of one target. The zero value is ready.
type Set struct {
	mu  sync.Mutex
	all map[string]*Twin // by home namespace
}

// Get returns the watched twin of the home namespace, nil without one.
func (s *Set) Get(home string) *Twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[home]
}

// Ensure returns the watched twin of home; it makes one if there is none or its name has changed.
func (s *Set) Ensure(home, name string, make func() *Twin) *Twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.all[home]; t != nil {
		if t.Name == name {
			return t
		}
		go t.close()
	}
	t := make()
	if s.all == nil {
		s.all = map[string]*Twin{}
	}
	s.all[home] = t
	return t
}

// Renew restarts every watch.
func (s *Set) Renew(make func(home, name string) *Twin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for home, t := range s.all {
		go t.close()
		s.all[home] = make(home, t.Name)
	}
}

// List returns all.
func (s *Set) List() []*Twin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all))
}

// Drop ends the watches of the twin of the home namespace. It does not wait for their end.
func (s *Set) Drop(home string) {
	s.mu.Lock()
	t := s.all[home]
	delete(s.all, home)
	s.mu.Unlock()
	if t != nil {
		go t.close() // its handlers may wait for the caller
	}
}

// CloseAll drops all, and returns after their end.
func (s *Set) CloseAll() {
	s.mu.Lock()
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for _, t := range all {
		t.close()
	}
}
