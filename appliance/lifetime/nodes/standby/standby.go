// Package standby has the files by which one of several devices is the server of a cluster
// (docs/design/nodes.md#standby-servers). The server of a cluster has the cluster's identity in its store, each other
// device one of its own; a device that becomes the server, or ceases to be it, exchanges the two.
//
// It reads and writes the state folder, before its store is open, and has no state of its own. Each change is a step in
// a file, and is finished at the next start after a power cut.
package standby

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/engine/datastore"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
)

// Copy is what a device needs to become the server. It has all secrets of the cluster.
type Copy struct {
	Identity []byte            `json:"identity"`
	Peers    []json.RawMessage `json:"peers"` // as of peer.Decode
	Notes    map[string][]byte `json:"notes,omitempty"`
	// SQL has k3s's token of servers.
	SQL datastore.SQLCluster `json:"sql"`
	// Settings are the cluster's (config.Loaded.Cluster), with the address of its database.
	Settings string       `json:"settings"`
	Ranges   fixed.Ranges `json:"ranges"`
}

// notes are the notes of the store that are the cluster's: whom it trusts, and what it has granted. The others are of a
// device: its clock, its console.
var notes = []string{"trust", "kubeconfigs", "metrics", "burst"}

// Store is what Take reads.
type Store interface {
	Identity() ([]byte, error)
	Peers() ([]peer.Record, error)
	Note(name string) ([]byte, error)
}

// Take reads this device's own copy.
func Take(state string, st Store, settings string) (c Copy, err error) {
	c = Copy{Notes: map[string][]byte{}, Settings: settings}
	if c.Identity, err = st.Identity(); err != nil {
		return c, err
	}
	if c.SQL, err = datastore.LoadSQLCluster(state); err != nil {
		return c, err
	}
	if c.Ranges, _, err = fixed.Of(state); err != nil {
		return c, err
	}
	records, err := st.Peers()
	if err != nil {
		return c, err
	}
	for _, r := range records {
		raw, err := json.Marshal(r)
		if err != nil {
			return c, err
		}
		c.Peers = append(c.Peers, raw)
	}
	for _, name := range notes {
		blob, err := st.Note(name)
		if err != nil {
			return c, err
		}
		if blob != nil {
			c.Notes[name] = blob
		}
	}
	return c, nil
}

// Hash names the whole content.
func (c Copy) Hash() string {
	raw, _ := json.Marshal(c)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// Tag names the content as far as it decides who is trusted with what, and by which keys: a device with another tag may
// not become the server. Addresses at which peers were seen last and the like are not part of it.
func (c Copy) Tag() string {
	named := c
	named.Peers = nil
	for _, raw := range c.Peers {
		r, err := peer.Decode(raw)
		if err != nil {
			continue // Check has refused it
		}
		kept, _ := json.Marshal(peer.Record{
			ID: r.ID, Trust: peer.Trust{How: r.Trust.How}, Certificate: r.Certificate, WireGuardKey: r.WireGuardKey, NextWireGuardKey: r.NextWireGuardKey,
			PeerMappedCIDR: r.PeerMappedCIDR, LocalMappedCIDR: r.LocalMappedCIDR, Roles: r.Roles, Node: r.Node, Standby: r.Standby,
		})
		named.Peers = append(named.Peers, kept)
	}
	return named.Hash()
}

// Check refuses a copy with which this device could not be the server.
func (c Copy) Check() error {
	if len(c.Identity) == 0 || c.SQL.Token == "" || c.Settings == "" || !c.Ranges.Pods.IsValid() {
		return errors.New("the server's answer is incomplete; run the same version of rivulet on both devices")
	}
	for _, raw := range c.Peers {
		if _, err := peer.Decode(raw); err != nil {
			return err
		}
	}
	return nil
}

// Load returns nil if this device is no standby.
func Load(state string) (*Copy, error) {
	c := &Copy{}
	there, err := read(paths.Standby(state), c)
	if !there {
		return nil, err
	}
	return c, err
}

// Save stores it.
func (c Copy) Save(state string) error { return write(paths.Standby(state), c) }

// Gateway is the part of a device that is the server of a cluster with standbys.
type Gateway struct {
	// Step is what is left to do before the device runs.
	Step string `json:"step,omitempty"`
	// New: there is no lease yet; this device begins it.
	New bool `json:"new,omitempty"`
	// Settings are the cluster's, of the server before, or, with StepFollow, of this one; the device's own are stronger.
	// Empty on the first one.
	Settings string `json:"settings,omitempty"`
	// Worker is the content of paths.Worker once another device is the server.
	Worker json.RawMessage `json:"worker"`
}

// The steps of a Gateway.
const (
	StepBegin  = "begin"  // give the device an identity of its own beside the cluster's
	StepFollow = "follow" // another device is the server: become a worker of it
)

// Serving returns nil if this device is no server of a cluster with standbys.
func Serving(state string) (*Gateway, error) {
	g := &Gateway{}
	there, err := read(paths.Gateway(state), g)
	if !there {
		return nil, err
	}
	return g, err
}

// Save stores it.
func (g Gateway) Save(state string) error { return write(paths.Gateway(state), g) }

func read(path string, to any) (there bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, to)
	}
	if err != nil {
		return true, cure.Errorf("which device is the server of this cluster cannot be read: %s: %w; look at the disk; if the file is lost, begin anew: rivulet reset", path, err)
	}
	return true, nil
}

func write(path string, what any) error {
	raw, err := json.Marshal(what)
	if err == nil {
		err = durable.Write(path, raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("which device is the server of this cluster cannot be stored: %w; look at the disk", err)
	}
	return nil
}

// content is the store of the server on the node.
func (c Copy) content(node string) (bolt.Content, error) {
	out := bolt.Content{Identity: c.Identity, Node: node, Peers: map[string][]byte{}, Notes: c.Notes}
	for _, raw := range c.Peers {
		r, err := peer.Decode(raw)
		if err != nil {
			return out, err
		}
		if r.Trust.Node() && r.Node == node {
			r.Behind, r.Control, r.Tunnel = nil, netip.AddrPort{}, netip.AddrPort{} // it is this device
		}
		blob, err := json.Marshal(r)
		if err != nil {
			return out, err
		}
		out.Peers[string(r.ID)] = blob
	}
	return out, nil
}
