package users

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/rest"

	"rivulet/appliance/engine/controlplane/roles"
	"rivulet/fabric/peer"
	"rivulet/offload/apiproxy"
)

// VClusters are the virtual clusters of this device.
type VClusters interface {
	// Identity returns the identity for a name.
	Identity(name string) (peer.ID, error)
	// Identities returns all identities; false while they are not known.
	Identities() (map[peer.ID]bool, bool)
	// Changed reports changes of Identities.
	Changed() (<-chan struct{}, func())
	// Ready returns nil once it is awake for a request of the user, or the reason why it is not: controlplane.ErrAsleep for
	// one that only watches.
	Ready(ctx context.Context, id peer.ID, user string, watches bool) error
	// REST returns access to its API server as a user in a group, valid until that time.
	REST(id peer.ID, user, group string, until time.Time) (*rest.Config, error)
}

// wakeWait is how long a request waits until a virtual cluster is awake.
const wakeWait = time.Minute

// way returns a user's proxy to a virtual cluster. It wakes that, unless the request only watches. The group of the role
// has its rights there.
func (f *front) way(ctx context.Context, r record, watches bool) (*apiproxy.Proxy, error) {
	ctx, cancel := context.WithTimeout(ctx, wakeWait)
	defer cancel()
	if err := f.virtual.Ready(ctx, r.ID, r.User, watches); err != nil {
		return nil, err
	}
	f.waysLock.Lock()
	defer f.waysLock.Unlock()
	key := r.key()
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

// closeWays drops those of users without access.
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

// endGone ends the access to deleted virtual clusters.
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
