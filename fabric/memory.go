package fabric

import (
	"sync"

	"rivulet/fabric/trust"
)

// memory is the Notes of a fabric without a store.
type memory struct {
	mu    sync.Mutex
	blobs map[string][]byte
}

func (m *memory) Note(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blobs[name], nil
}

func (m *memory) PutNote(name string, blob []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blobs[name] = blob
	return nil
}

var _ trust.Notes = (*memory)(nil)
