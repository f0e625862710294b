// Package config is what home and its gateway pod in a foreign cluster tell each
// other: JSON, in a Secret that the pod mounts and over its control port. Both
// sides ignore fields that they do not know, so that either may be newer. It does
// nothing.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// The ports of the pod. The first two are open on its loopback only, where nobody
// comes but who may port-forward to the pod.
const (
	StreamPort  = 7442  // a connection here becomes a stream of the tunnel
	ControlPort = 7443  // HTTP
	TunnelPort  = 7442  // UDP
	DNSPort     = 10053 // UDP and TCP; the Service has 53
	ReadyPort   = 10080 // HTTP, for the kubelet
	// FirstPort is the first of the ports for home's Services.
	FirstPort, LastPort = 20000, 29999
)

// HomeID names home among the tunnel's peers.
const HomeID = "home"

// Gateway is the whole desired state of a gateway.
type Gateway struct {
	// Generation grows with every change, so that an old file does not undo what was
	// told since.
	Generation int64 `json:"generation"`
	// PrivateKey is the gateway's, PublicKey home's: Curve25519, base64.
	PrivateKey string `json:"privateKey"`
	PublicKey  string `json:"publicKey"`
	// Address is the gateway's own, one of Prefix, under which home sees this side.
	Address netip.Addr   `json:"address"`
	Prefix  netip.Prefix `json:"prefix"`
	// Home is the prefix of home's pods, as they are there.
	Home netip.Prefix `json:"home"`
	// UDP and Streams are where home may be reached, if it may be.
	UDP     []netip.AddrPort `json:"udp,omitempty"`
	Streams []netip.AddrPort `json:"streams,omitempty"`
	// Pods are home's pods here: the address that home sees, and the real one. The
	// gateway connects to nobody else.
	Pods map[netip.Addr]netip.Addr `json:"pods,omitempty"`
	// Services are home's, for pods here.
	Services []Service `json:"services,omitempty"`
	// StreamsOnly has the gateway use no UDP.
	StreamsOnly bool `json:"streamsOnly,omitempty"`
	// Zone is the domain of home's cluster.
	Zone string `json:"zone,omitempty"`
}

// Service is one Service of home.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// IP is where pods here reach it: what its names are answered with. None yet if it
	// is not valid.
	IP    netip.Addr `json:"ip,omitzero"`
	Ports []Port     `json:"ports,omitempty"`
	// External is the name that it stands for, if it is an ExternalName; there is
	// nothing else of it then.
	External string `json:"external,omitempty"`
	// Headless says that its name means each of Hosts.
	Headless bool   `json:"headless,omitempty"`
	Hosts    []Host `json:"hosts,omitempty"`
}

// Host is one pod of a headless Service.
type Host struct {
	// Name is its host name, or made of its address.
	Name string `json:"name"`
	// Pod is its address as home sees it.
	Pod netip.Addr `json:"pod"`
	// IP is where pods here reach it; of a pod that is here Pods has it.
	IP netip.Addr `json:"ip,omitzero"`
	// Ports are its ports. Those of a pod that is reached by an address of its own have
	// a port of the gateway, too.
	Ports []Port `json:"ports,omitempty"`
}

// Doors are all ports for which the gateway holds one.
func (s Service) Doors() []Port {
	out := slices.Clone(s.Ports)
	for _, h := range s.Hosts {
		for _, p := range h.Ports {
			if p.Listen != 0 {
				out = append(out, p)
			}
		}
	}
	return out
}

// Port is one port of a Service.
type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // tcp or udp
	Port     uint16 `json:"port"`     // of the Service
	// Listen is the gateway's port for it.
	Listen uint16 `json:"listen"`
	// Endpoints are the pods behind it, as home sees them.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
}

// Check reports what cannot be.
func (g Gateway) Check() error {
	switch {
	case !g.Prefix.IsValid() || !g.Prefix.Contains(g.Address):
		return fmt.Errorf("gateway: the address %s is not in %s", g.Address, g.Prefix)
	case !g.Home.IsValid() || g.Home.Overlaps(g.Prefix):
		return fmt.Errorf("gateway: home's pods are in %s, which overlaps %s", g.Home, g.Prefix)
	case g.PrivateKey == "" || g.PublicKey == "":
		return errors.New("gateway: a key is missing")
	}
	seen := map[string]bool{}
	for _, s := range g.Services {
		for _, p := range s.Doors() {
			if p.Protocol != "tcp" && p.Protocol != "udp" {
				return fmt.Errorf("gateway: Service %s/%s: the protocol %q is neither tcp nor udp", s.Namespace, s.Name, p.Protocol)
			}
			if p.Listen < FirstPort || p.Listen > LastPort {
				return fmt.Errorf("gateway: Service %s/%s: the port %d is not one for Services", s.Namespace, s.Name, p.Listen)
			}
			at := fmt.Sprint(p.Protocol, p.Listen)
			if seen[at] {
				return fmt.Errorf("gateway: Service %s/%s: the port %d is another's", s.Namespace, s.Name, p.Listen)
			}
			seen[at] = true
		}
	}
	return nil
}

// Find returns home's Service of the name.
func (g Gateway) Find(namespace, name string) (Service, bool) {
	i := slices.IndexFunc(g.Services, func(s Service) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 {
		return Service{}, false
	}
	return g.Services[i], true
}

// Status is what a gateway says of itself.
type Status struct {
	Version string `json:"version"`
	// Configured says that it has a configuration; Digest which.
	Configured bool   `json:"configured"`
	Digest     string `json:"digest,omitempty"`
	// Connected says that home has been heard lately.
	Connected     bool      `json:"connected"`
	LastHandshake time.Time `json:"lastHandshake,omitzero"`
	Received      uint64    `json:"received"` // bytes
	Sent          uint64    `json:"sent"`
	Flows         Flows     `json:"flows"`
	// Problems are ports that cannot be opened, and the like.
	Problems []string `json:"problems,omitempty"`
}

// Flows are connections through the gateway.
type Flows struct {
	TCP     int    `json:"tcp"`
	UDP     int    `json:"udp"`
	Refused uint64 `json:"refused"` // since start: to nobody of ours, or beyond the bounds
}

// Path is the way between home and a gateway.
type Path struct {
	Kind          string        `json:"kind"`              // direct or stream
	Address       string        `json:"address,omitempty"` // of the gateway; none through the API server
	RTT           time.Duration `json:"rtt"`               // nanoseconds
	Received      uint64        `json:"received"`          // bytes
	Sent          uint64        `json:"sent"`
	LastHandshake time.Time     `json:"lastHandshake,omitzero"`
}
