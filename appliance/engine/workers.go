package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"rivulet/appliance/state/paths"
)

// Workers are the names of the workers that this device's engine serves, by their node addresses. The tunnel lets a
// worker send from its own address alone, so the address says who speaks (docs/design/nodes.md#what-a-stolen-worker-may-do).
type Workers map[netip.Addr]string

// SaveWorkers makes the engine serve these workers and no others, from the next request on.
func SaveWorkers(state string, w Workers) error {
	raw, err := json.Marshal(w)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return writeFile(paths.Workers(state), string(raw))
}

// LoadWorkers returns what SaveWorkers has stored last, nothing if it never was called.
func LoadWorkers(state string) (w Workers, err error) {
	raw, err := os.ReadFile(paths.Workers(state))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &w)
	}
	if err != nil {
		return nil, fmt.Errorf("engine: which workers this device has is not known: %w; the supervisor writes it again within 30 s", err)
	}
	return w, nil
}
