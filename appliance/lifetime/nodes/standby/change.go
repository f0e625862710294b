package standby

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"rivulet/appliance/config/fixed"
	"rivulet/appliance/lifetime/cleanup"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/state/bolt"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/identity"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/cure"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
)

// Lead makes this worker, the device of the node, the server of its cluster. The caller has seen the lease of the
// gateway here. It may be repeated until worker, the file that says so, is gone.
func Lead(state, node string, worker json.RawMessage) error {
	c, err := loaded(state)
	if err != nil {
		return err
	}
	content, err := c.content(node)
	if err != nil {
		return err
	}
	if !there(paths.DeviceStore(state)) {
		if err := bolt.Replace(paths.Store(state), paths.DeviceStore(state)); err != nil {
			return err
		}
	}
	if err := bolt.Create(paths.Store(state), content); err != nil {
		return err
	}
	if err := errors.Join(c.SQL.Save(state), fixed.Write(state, c.Ranges), Gateway{Settings: c.Settings, Worker: worker}.Save(state)); err != nil {
		return err
	}
	if err := dropAddress(paths.DeviceStore(state), c.Ranges.Nodes); err != nil {
		return err
	}
	if err := durable.Remove(paths.Worker(state)); err != nil {
		return err
	}
	return durable.Remove(paths.Standby(state))
}

// Finish does the step of a Gateway that is left, and returns the Gateway that there is then.
func Finish(state string) (*Gateway, error) {
	g, err := Serving(state)
	if err != nil || g == nil {
		return g, err
	}
	switch g.Step {
	case StepBegin:
		if err := beside(state); err != nil {
			return nil, err
		}
		g.Step = ""
		return g, g.Save(state)
	case StepFollow:
		return nil, g.follow(state)
	}
	return g, durable.Remove(paths.Standby(state)) // left by a power cut at the end of Lead
}

// beside gives the device an identity of its own, for the time when another one is the server: a node of the cluster,
// known to it by its certificate.
func beside(state string) error {
	st, err := bolt.Open(paths.Store(state))
	if err != nil {
		return err
	}
	defer st.Close()
	node, err := st.NodeName()
	if err != nil {
		return err
	}
	cluster, err := identity.Load(st)
	if err != nil {
		return err
	}
	self, err := rpc.NewIdentity(cluster.Key, node)
	if err != nil {
		return err
	}
	records, err := st.Peers()
	if err != nil {
		return err
	}
	ranges, _, err := fixed.Of(state)
	if err != nil {
		return err
	}
	device := paths.DeviceStore(state)
	if !there(device) {
		var own memory
		for {
			id, err := identity.Load(&own)
			if err != nil {
				return err
			}
			at := identity.NodeAddress(id.ID(), ranges.Nodes)
			if at != identity.NodeAddress(cluster.ID(), ranges.Nodes) && !slices.ContainsFunc(records, func(r peer.Record) bool {
				return r.Trust.Node() && identity.NodeAddress(r.ID, ranges.Nodes) == at
			}) {
				break
			}
			own = nil
		}
		server, err := json.Marshal(peer.Record{ID: cluster.ID(), Name: node, Trust: peer.Trust{How: peer.TrustServer, At: time.Now()}, Certificate: self.Certificate.Certificate[0]})
		if err != nil {
			return err
		}
		if err := bolt.Create(device, bolt.Content{Identity: own, Node: node, Peers: map[string][]byte{string(cluster.ID()): server}}); err != nil {
			return err
		}
	}
	id, err := idOf(device)
	if err != nil {
		return err
	}
	own, err := rpc.NewIdentity(id.Key, node)
	if err != nil {
		return err
	}
	return st.PutPeer(peer.Record{ID: own.ID, Name: node, Trust: peer.Trust{How: peer.TrustWorker, At: time.Now()}, Certificate: own.Certificate.Certificate[0], Node: node, Standby: true})
}

// memory is an identity.Store.
type memory []byte

func (m *memory) Identity() ([]byte, error)     { return *m, nil }
func (m *memory) PutIdentity(blob []byte) error { *m = blob; return nil }

// follow makes the device a worker of its cluster: another device is the server.
func (g Gateway) follow(state string) error {
	device, store := paths.DeviceStore(state), paths.Store(state)
	if there(device) {
		st, err := bolt.Open(store)
		if err != nil {
			return err
		}
		c, err := Take(state, st, g.Settings)
		if err = errors.Join(err, st.Close()); err != nil {
			return err
		}
		if err := errors.Join(c.Save(state), dropAddress(store, c.Ranges.Nodes)); err != nil {
			return err
		}
		if err := bolt.Replace(device, store); err != nil {
			return err
		}
	}
	c, err := loaded(state)
	if err != nil {
		return err
	}
	// The next time as the server begins with what the database has.
	if err := cleanup.RemoveAll(paths.Server(state)); err != nil {
		return err
	}
	if err := errors.Join(fixed.Write(state, c.Ranges), durable.Remove(paths.SQLCluster(state)), durable.Remove(bolt.CopyOf(device)), durable.Write(paths.Worker(state), g.Worker, 0o600)); err != nil {
		return err
	}
	return durable.Remove(paths.Gateway(state))
}

// loaded is Load where there has to be a copy.
func loaded(state string) (*Copy, error) {
	c, err := Load(state)
	if err == nil && c == nil {
		err = cure.Errorf("what this device needs to be the server is not in %s; join the cluster again after: rivulet reset", paths.Standby(state))
	}
	return c, err
}

// dropAddress removes the address of the node that the identity in a store gives.
func dropAddress(store string, nodes netip.Prefix) error {
	id, err := idOf(store)
	if err != nil {
		return err
	}
	return host.DropNodeAddress(identity.NodeAddress(id.ID(), nodes))
}

func idOf(store string) (identity.Identity, error) {
	st, err := bolt.Open(store)
	if err != nil {
		return identity.Identity{}, err
	}
	id, err := identity.Load(st)
	return id, errors.Join(err, st.Close())
}

func there(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
