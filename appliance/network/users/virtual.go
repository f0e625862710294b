package users

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/rest"

	"rivulet/appliance/engine/tenant/roles"
	"rivulet/fabric/peer"
	"rivulet/offload/apiproxy"
)

// VClusters are the virtual clusters of this device.
type VClusters interface {
	// Identity is that of the one with a name.
	Identity(name string) (peer.ID, error)
	// Identities are those of all; false while it is not known which there are.
	Identities() (map[peer.ID]bool, bool)
	// Changed follows Identities.
	Changed() (<-chan struct{}, func())
	// Ready returns once it is awake, or with why it is not.
	Ready(ctx context.Context, id peer.ID) error
	// REST is the way to its API server as a user in a group, good until that time.
	REST(id peer.ID, user, group string, until time.Time) (*rest.Config, error)
}

// wakeWait is how long a request waits for a virtual cluster to wake.
const wakeWait = time.Minute

// way is that of a user into a virtual cluster, which it wakes. Rights are what the cluster gives the
// group of the role.
func (f *front) way(ctx context.Context, r record) (*apiproxy.Proxy, error) {
	ctx, cancel := context.WithTimeout(ctx, wakeWait)
	defer cancel()
	if err := f.virtual.Ready(ctx, r.ID); err != nil {
		return nil, err
	}
	f.waysLock.Lock()
	defer f.waysLock.Unlock()
	key := [32]byte(r.Key)
	if p := f.ways[key]; p != nil {
		return p, nil
	}
	cfg, err := f.virtual.REST(r.ID, userName(r.User), roles.Group(r.Role), r.Expires)
	if err != nil {
		return nil, err
	}
	p, err := apiproxy.New(cfg, f.log)
	if err != nil {
		return nil, err
	}
	f.ways[key] = p
	return p, nil
}

// closeWays forgets those of users without access.
func (f *front) closeWays(now time.Time) {
	f.waysLock.Lock()
	defer f.waysLock.Unlock()
	for key, p := range f.ways {
		if r, ok := f.list.find(key); !ok || !r.active(now) {
			p.Close()
			delete(f.ways, key)
		}
	}
}

// endGone ends the access to virtual clusters that are not there any more.
func (a *Access) endGone(now time.Time) error {
	have, sure := a.cfg.VClusters.Identities()
	if !sure {
		return nil
	}
	none := errors.New("none")
	err := a.list.end(now, func(r record) bool { return r.ID != "" && !have[r.ID] }, none)
	if errors.Is(err, none) {
		return nil
	}
	return err
}
