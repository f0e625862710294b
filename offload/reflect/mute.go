package reflect

import "errors"

// How watches that went mute are found out is told by package mute. Here the twin's
// have to show what was written there: another version than the one before.

// errMute ends a space whose watches are mute.
var errMute = errors.New("reflect: a watch of the target went mute")

// shows is called with the version of an object that the watch of the twin shows
// now, empty if it shows none.
func (s *space) shows(k key, version string) {
	s.mu.Lock()
	before, waiting := s.unseen[k]
	if waiting && before != version {
		delete(s.unseen, k)
	}
	s.mu.Unlock()
	if waiting && before != version {
		s.guard.Trust(k)
	}
}

// wrote says that the target has been told, or has said, something that the watch has
// to show: another version than this one.
func (s *space) wrote(k key, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unseen[k] = version
}

// overdue reports whether the watch has had its time to show what was written of the
// object. If not yet, it is looked at again when that time is over.
func (s *space) overdue(k key) bool {
	s.mu.Lock()
	_, waiting := s.unseen[k]
	s.mu.Unlock()
	if !waiting {
		return false
	}
	left := s.guard.Doubt(k)
	if left > 0 {
		s.queue.AddAfter(k, left)
	}
	return left == 0
}
