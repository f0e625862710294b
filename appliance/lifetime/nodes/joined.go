// Package nodes makes several devices nodes of one cluster (docs/design/nodes.md): a server has the cluster's API and
// its peers, workers run its pods. Both are connected as peers are, and are none.
//
// The server's part reads Nodes of the API and the fabric's records of workers. It alone writes the bootstrap tokens of
// workers, the prefixes behind them and the label of their Nodes, and removes Nodes of devices that are no nodes any more. The worker's part alone
// writes <state>/worker.json, and the kubeconfig of a worker. Restart: all of it is in these files and records.
// Failure: a worker whose server does not answer keeps its pods; problems have a cure.
package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/lifetime/nodes/standby"
	"rivulet/appliance/lifetime/reset"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/peer"
)

// Info is what a worker needs of its cluster; it is the answer of the server.
type Info struct {
	Server  peer.ID `json:"server"`
	Cluster string  `json:"cluster"` // its name
	// Address is that of the server's node.
	Address netip.Addr   `json:"address"`
	Ranges  fixed.Ranges `json:"ranges"`
	// Block has the prefixes of the cluster's peers.
	Block netip.Prefix `json:"block"`
	// Kubernetes is the version of its API server.
	Kubernetes string `json:"kubernetes"`
	// Node is the name of the worker's node, Token its secret for k3s.
	Node  string `json:"node"`
	Token string `json:"token"`
}

// behind are the prefixes that a worker reaches through the server.
func (i Info) behind() []netip.Prefix { return []netip.Prefix{i.Ranges.Pods, i.Ranges.Nodes, i.Block} }

// Joined is the state of a worker.
type Joined struct {
	Info
	// Step is what is left to do before the device runs as a worker, or as a cluster of its own again.
	Step string `json:"step,omitempty"`
	// Removed: the server has ended the membership. Nothing of the cluster runs here.
	Removed bool `json:"-"`
}

// The steps. stepLead is of a worker that becomes the server (package standby).
const (
	stepLead  = "lead"
	stepWipe  = "wipe"  // remove the cluster that the device was
	stepLeave = "leave" // remove all that it had as a worker
)

func (j Joined) save(state string) error {
	raw, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		err = durable.Write(paths.Worker(state), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("which cluster this device belongs to cannot be stored: %w; look at the disk", err)
	}
	return nil
}

// load returns nil if the device is a cluster of its own.
func load(state string) (*Joined, error) {
	raw, err := os.ReadFile(paths.Worker(state))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	j := &Joined{}
	if err == nil {
		err = json.Unmarshal(raw, j)
	}
	if err == nil && (!j.Server.Valid() || !j.Address.IsValid() || j.Node == "") {
		err = errors.New("it is incomplete")
	}
	if err != nil {
		return nil, fmt.Errorf("which cluster this device belongs to cannot be read: %s: %w; join again after: rivulet reset", paths.Worker(state), err)
	}
	return j, nil
}

// Role is the part of this device in its cluster.
type Role struct {
	*Joined // nil on a server, and so on a cluster of one device
	// Serving is that of the server of a cluster with standbys, Copy that of a standby; nil on other devices.
	Serving *standby.Gateway
	Copy    *standby.Copy
}

// ClusterSettings are the cluster's that this device has of another one; empty is none.
func (r Role) ClusterSettings() string {
	switch {
	case r.Serving != nil:
		return r.Serving.Settings
	case r.Copy != nil:
		return r.Copy.Settings
	}
	return ""
}

// Leased reports whether this device is the server only while it has the lease of the gateway.
func (r Role) Leased() bool { return r.Serving != nil }

// Begin is called at the start, before the store is open. What is left of a join, a leave or a change of the server is
// done first; each step may be repeated after a power cut.
func Begin(ctx context.Context, state, run, engineName string, log *slog.Logger) (r Role, err error) {
	j, err := load(state)
	if err == nil && j != nil && j.Step == stepLead {
		log.Warn("this device becomes the server", "cluster", j.Cluster)
		j.Step = ""
		var worker []byte
		if worker, err = json.Marshal(j); err == nil {
			err = standby.Lead(state, j.Node, worker)
		}
	}
	if err == nil {
		r.Serving, err = standby.Finish(state)
	}
	if err == nil {
		r.Joined, err = begin(ctx, state, run, engineName, log)
	}
	if err == nil && r.Joined != nil && !r.Joined.Removed {
		r.Copy, err = standby.Load(state)
	}
	return r, err
}

// begin returns nil if the device is a server.
func begin(ctx context.Context, state, run, engineName string, log *slog.Logger) (*Joined, error) {
	j, err := load(state)
	if err != nil || j == nil {
		return nil, err
	}
	end := func() {
		for _, left := range cleanup.Run(ctx, cleanup.Config{State: state, Run: run, EngineName: engineName}).Left {
			log.Warn("not removed", "what", left)
		}
	}
	if j.Step == "" {
		if j.Removed, err = removed(state, j.Server); j.Removed {
			end() // pods of a cluster that it is no part of
		}
		return j, err
	}
	log.Info("removing what this device was", "step", j.Step, "cluster", j.Cluster)
	end()
	if j.Step == stepLeave {
		if _, err := reset.State(state, false); err != nil { // the file is among what it removes
			return nil, err
		}
		return nil, nil
	}
	if _, err := reset.Worker(state, j.Server); err != nil {
		return nil, err
	}
	if err := errors.Join(fixed.Write(state, j.Info.Ranges), putNode(state, j.Node)); err != nil {
		return nil, err
	}
	j.Step = ""
	return j, j.save(state)
}

// putNode stores the name of the device's node, which is another one in another cluster.
func putNode(state, name string) error {
	st, err := bolt.Open(paths.Store(state))
	if err != nil {
		return err
	}
	return errors.Join(st.PutNodeName(name), st.Close())
}

// removed reports whether the server is no longer one of this device.
func removed(state string, server peer.ID) (bool, error) {
	st, err := bolt.Open(paths.Store(state))
	if err != nil {
		return false, nil // it is opened, or recovered, next, with this error
	}
	defer st.Close()
	records, err := st.Peers()
	return err == nil && !slices.ContainsFunc(records, func(r peer.Record) bool { return r.ID == server && r.Trust.How == peer.TrustServer }), err
}
