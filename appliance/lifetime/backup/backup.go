// Package backup writes a device's cluster into one stream and brings it back, on the same
// hardware or on other (docs/design/backup.md). The stream is package archive's, manifest.json first;
// it holds private keys.
//
// It reads the state, the configuration and volumes while the cluster runs. Beside the stream it alone writes
// <state>/.backup and <state>/.restore, which are gone when it has ended, and what it restores. Restart, power
// cut: once a plan is written a start finishes it (Finish), without one the old state is untouched; nothing of
// the old is deleted, it is set aside. Failure: one error with a cure.
package backup

import (
	"errors"
	"fmt"
	"time"

	"rivulet/appliance/version"
)

// Format is the version of the stream's layout.
const Format = 2

// The members that every stream has, and the folders of the others.
const (
	manifestName  = "manifest.json"
	storeName     = "state.db"
	datastoreName = "datastore.db"
	passwordName  = "node/password"
	serverDir     = "server"
	configDir     = "etc"
	storageDir    = "storage"
	vclustersDir  = "vclusters"
)

// Manifest says what a stream holds. It comes first.
type Manifest struct {
	Format     int       `json:"format"`
	Rivulet    string    `json:"rivulet"`    // version that wrote it
	Kubernetes string    `json:"kubernetes"` // version that wrote the datastore
	Name       string    `json:"name"`       // of the cluster, for its peers
	Node       string    `json:"node"`
	ID         string    `json:"id"`
	Arch       string    `json:"arch"`
	Created    time.Time `json:"created"`
	Volumes    bool      `json:"volumes"` // local volumes are in it
	// VClusters says that virtual clusters are in it, if there were any; since format 2.
	VClusters bool `json:"vclusters,omitempty"`
}

// Paths are the places that are saved and restored.
type Paths struct {
	State  string // <state>, with state.db and k3s below it
	Config string // /etc/rivulet
	Node   string // /etc/rancher/node, a link into the state or a folder of its own
}

// DefaultPaths are those of a device whose state folder is state.
func DefaultPaths(state string) Paths {
	return Paths{State: state, Config: "/etc/rivulet", Node: "/etc/rancher/node"}
}

// ErrUnusable is in every error that says that a stream cannot be restored;
// nothing was touched then.
var ErrUnusable = errors.New("this backup cannot be used")

func unusable(format string, args ...any) error {
	return fmt.Errorf("backup: %w: %w; nothing was changed", ErrUnusable, fmt.Errorf(format, args...))
}

// check judges whether this program can run what m describes.
func (m Manifest) check(ourKubernetes string) error {
	if m.Format > Format {
		return unusable("its format is %d, this rivulet (%s) knows up to %d; use rivulet %s or newer", m.Format, version.Version, Format, m.Rivulet)
	}
	if m.Format < 1 || m.ID == "" || m.Node == "" {
		return unusable("its manifest names no format, cluster or node; take another backup file")
	}
	if err := version.CanRead(ourKubernetes, m.Kubernetes, m.Rivulet); err != nil {
		return unusable("%w", err)
	}
	return nil
}

// Skips reports whether restoring m with this program leaves out versions of
// Kubernetes on the way, which mostly works and is not promised.
func (m Manifest) Skips(ourKubernetes string) bool {
	theirs, err1 := version.Minor(m.Kubernetes)
	ours, err2 := version.Minor(ourKubernetes)
	return err1 == nil && err2 == nil && ours-theirs > 1
}
