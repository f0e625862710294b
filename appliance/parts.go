package appliance

import (
	"sync"

	"rivulet/appliance/network"
	"rivulet/fabric"
	"rivulet/fabric/tunnel"
	"rivulet/image/bundle"
	"rivulet/offload"
)

// parts are the subsystems that components have made so far. One that is not made yet is
// nil; a component that needs another one runs after that is Ready, and finds it.
type parts struct {
	bundle  bundle.Dir
	tunnel  *tunnel.Controller
	fabric  *fabric.Fabric
	routes  *network.Routes
	offload *offload.Offload
}

// shared are the parts, which are read and written through get and set only.
type shared struct {
	mu  sync.Mutex
	all parts
}

func (s *shared) get() parts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

func (s *shared) set(change func(*parts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.all)
}
