// Package backup writes a device's cluster into one stream and restores it, on the same hardware or other
// (docs/design/backup.md). The stream is package archive's, manifest.json first; it contains private keys.
//
// It reads the state, the configuration and volumes while the cluster runs. Beside the stream it alone writes
// <state>/.backup and <state>/.restore, which it removes at the end, and what it restores. Restart, power cut: a start
// completes a restore with a written plan (Finish); without one the old state is unchanged. Old data are set aside, not
// deleted. Failure: one error with a cure.
package backup

import (
	"errors"
	"fmt"
	"time"

	"rivulet/appliance/state/paths"
	"rivulet/appliance/version"
)

// Format is the version of the stream's layout.
const Format = 3

// The members of every stream, and the folders of the others.
const (
	manifestName  = "manifest.json"
	storeName     = "state.db"
	datastoreName = "datastore.db"
	passwordName  = "node/password"
	sqlName       = "k3s-sql.json" // instead of datastoreName, if the objects are in an SQL server
	gatewayName   = "gateway.json" // with deviceName, of the server of a cluster with standbys
	deviceName    = "device.db"
	serverDir     = "server"
	configDir     = "etc"
	storageDir    = "storage"
	vclustersDir  = "vclusters"
)

// Manifest describes a stream. It is the first member.
type Manifest struct {
	Format     int       `json:"format"`
	Rivulet    string    `json:"rivulet"`    // version that wrote it
	Kubernetes string    `json:"kubernetes"` // version that wrote the datastore
	Name       string    `json:"name"`       // of the cluster, for its peers
	Node       string    `json:"node"`
	ID         string    `json:"id"`
	Arch       string    `json:"arch"`
	Created    time.Time `json:"created"`
	Volumes    bool      `json:"volumes"` // local volumes are included
	// VClusters reports whether virtual clusters, if any, are included; since format 2.
	VClusters bool `json:"vclusters,omitempty"`
	// SQL names the database in an SQL server with the cluster's objects, which are not included.
	SQL string `json:"sql,omitempty"`
}

// Paths are the places to save and restore.
type Paths struct {
	State  string // <state>, which contains state.db and k3s
	Config string // /etc/rivulet
	Node   string // /etc/rancher/node, a link into the state or a separate folder
}

// DefaultPaths are those of a device with that state folder.
func DefaultPaths(state string) Paths {
	return Paths{State: state, Config: paths.Config, Node: "/etc/rancher/node"}
}

// ErrUnusable is in every error for a stream that cannot be restored; nothing was changed then.
var ErrUnusable = errors.New("this backup cannot be used")

func unusable(format string, args ...any) error {
	return fmt.Errorf("backup: %w: %w; nothing was changed", ErrUnusable, fmt.Errorf(format, args...))
}

// check returns an error if this program cannot run what m describes.
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

// objects is the name of the member with the objects, or with what leads to them.
func (m Manifest) objects() string {
	if m.SQL != "" {
		return sqlName
	}
	return datastoreName
}

// Skips reports whether a restore of m with this program skips minor versions of Kubernetes, which mostly works but is
// not guaranteed.
func (m Manifest) Skips(ourKubernetes string) bool {
	theirs, err1 := version.Minor(m.Kubernetes)
	ours, err2 := version.Minor(ourKubernetes)
	return err1 == nil && err2 == nil && ours-theirs > 1
}
