package pod

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// unstarted are the pods that this process has sent and that have not begun to start. If they are many, the provider is
// slow because it is busy, and not because of a problem of one of them.
type unstarted struct {
	mu   sync.Mutex
	pods map[types.UID]struct{}
}

func (u *unstarted) sent(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[types.UID]struct{}{}
	}
	u.pods[uid] = struct{}{}
}

// done removes pods that have begun to start or are gone.
func (u *unstarted) done(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.pods, uid)
}

func (u *unstarted) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.pods)
}
