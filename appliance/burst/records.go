package burst

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	target "rivulet/offload/target/external"
)

// note is the name of the list in the store.
const note = "burst"

// Store stores small blobs durably.
type Store interface {
	Note(name string) ([]byte, error)
	PutNote(name string, blob []byte) error
}

// record is the stored form of one target.
type record struct {
	Settings target.Settings `json:"settings"`
	Server   string          `json:"server"`
	Sealed   []byte          `json:"sealed"` // the kubeconfig
	Added    time.Time       `json:"added"`
	// Removed is when it was removed, while the target may still have objects of it.
	Removed time.Time `json:"removed,omitzero"`
	// New is true until the target is used for the first time.
	New bool `json:"new,omitempty"`
	// Origin is the server's first address, of which the target has its ID. It is set when the target is used first.
	Origin string `json:"origin,omitempty"`
	// Identity is that of the namespace; unknown before the target has answered. The first one stays.
	Identity target.Identity `json:"identity,omitzero"`
	// File is true for one of the configuration.
	File bool `json:"file,omitempty"`
}

func load(s Store) ([]record, error) {
	blob, err := s.Note(note)
	if err != nil {
		return nil, fmt.Errorf("burst: the list of targets cannot be read: %w", err)
	}
	if blob == nil {
		return nil, nil
	}
	var all []record
	if err := json.Unmarshal(blob, &all); err != nil {
		return nil, fmt.Errorf("burst: the list of targets is unreadable: %w; run the version of rivulet that wrote it, or restore a backup: rivulet restore FILE", err)
	}
	return all, nil
}

// save writes the list durably, with the targets of the configuration, so that one deleted there while Rivulet does not
// run is cleaned up, too. A list that could not be read is never replaced: it has the only credentials with which its
// targets can be cleaned up. m.mu is held.
func (m *Manager) save() error {
	if m.unread != nil {
		return m.unread
	}
	all := []record{}
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		if e := m.entries[name]; e.Sealed != nil {
			all = append(all, e.record)
		}
	}
	for _, e := range m.leaving {
		all = append(all, e.record)
	}
	blob, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("burst: %w", err)
	}
	return m.cfg.Store.PutNote(note, blob)
}
