package network

import (
	"net/http"
	"sync"
	"sync/atomic"

	"rivulet/fabric"
)

// Routes is the fabric as offload sees it. A component that is started again
// registers its routes again; the fabric's mux takes each only once.
type Routes struct {
	*fabric.Fabric
	mu   sync.Mutex
	have map[string]*atomic.Pointer[http.Handler]
}

// NewRoutes returns the fabric with no route yet.
func NewRoutes(f *fabric.Fabric) *Routes {
	return &Routes{Fabric: f, have: map[string]*atomic.Pointer[http.Handler]{}}
}

// Handle serves pattern with h, in place of what served it before.
func (r *Routes) Handle(pattern string, h http.Handler) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slot, ok := r.have[pattern]
	if !ok {
		slot = &atomic.Pointer[http.Handler]{}
		r.have[pattern] = slot
	}
	slot.Store(&h)
	if !ok {
		r.Fabric.Handle(pattern, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			(*slot.Load()).ServeHTTP(w, q)
		}))
	}
}
