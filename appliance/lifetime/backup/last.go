package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
)

// Last is when a user has saved this cluster; copies that an upgrade makes on the same disk are none.
type Last struct {
	// Made is the time of the last backup, zero if there was none; Since is when that was first looked for.
	Made  time.Time `json:"made,omitzero"`
	Since time.Time `json:"since,omitzero"`
}

// LoadLast returns zero values for a cluster of which nothing is known, also where the file is damaged.
func LoadLast(state string) (l Last, err error) {
	raw, err := os.ReadFile(paths.LastBackup(state))
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("when this cluster was saved last cannot be read: %w; look at the disk", err)
	}
	var known Last
	if json.Unmarshal(raw, &known) == nil {
		l = known
	}
	return l, nil
}

// Save writes it. Whoever makes the cluster anew removes the file with the rest of the state.
func (l Last) Save(state string) error {
	raw, err := json.Marshal(l)
	if err == nil {
		err = durable.Write(paths.LastBackup(state), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("when this cluster was saved cannot be stored: %w; look at the disk", err)
	}
	return nil
}
