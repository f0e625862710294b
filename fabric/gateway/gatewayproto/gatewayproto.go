// Package gatewayproto is the protocol between the home cluster and its gateway pod in a foreign cluster: JSON, in a Secret
// that the pod mounts and over its control port. Both sides ignore unknown fields, so that either may be newer.
package gatewayproto

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// The ports of the pod. The first two are open on its loopback only, which is reachable by port-forward alone.
const (
	StreamPort  = 7442  // a connection here becomes a stream of the tunnel
	ControlPort = 7443  // HTTP
	TunnelPort  = 7442  // UDP
	DNSPort     = 10053 // UDP and TCP; port 53 of the Service
	ReadyPort   = 10080 // HTTP, for the kubelet and the API server's proxy of pods
	// FirstPort is the first of the ports for home's Services.
	FirstPort, LastPort = 20000, 29999
)

// A request for StreamPath at ReadyPort that asks for this upgrade becomes a stream of the tunnel.
const (
	StreamPath    = "/v1/stream"
	StreamUpgrade = "rivulet-stream"
)

// HomeID names home among the tunnel's peers.
const HomeID = "home"

// Gateway is the whole desired state of a gateway.
type Gateway struct {
	// Generation grows with every change, so that an old file does not replace a newer configuration.
	Generation int64 `json:"generation"`
	// PrivateKey is the gateway's, PublicKey that of home: Curve25519, base64.
	PrivateKey string `json:"privateKey"`
	PublicKey  string `json:"publicKey"`
	// Address is the gateway's own, one of Prefix, under which home sees the foreign cluster.
	Address netip.Addr   `json:"address"`
	Prefix  netip.Prefix `json:"prefix"`
	// Home is the prefix of home's pods, as home uses it.
	Home netip.Prefix `json:"home"`
	// UDP and Streams are the addresses at which home is reachable, if any.
	UDP     []netip.AddrPort `json:"udp,omitempty"`
	Streams []netip.AddrPort `json:"streams,omitempty"`
	// Pods are home's pods in the foreign cluster: from the address that home sees to the real one. The gateway
	// connects to no other pods.
	Pods map[netip.Addr]netip.Addr `json:"pods,omitempty"`
	// Services are home's, for pods in the foreign cluster.
	Services    []Service `json:"services,omitempty"`
	StreamsOnly bool      `json:"streamsOnly,omitempty"`
	Zone        string    `json:"zone,omitempty"`
}

type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// IP is where pods of the foreign cluster reach the Service; DNS answers contain it. It is invalid until known.
	IP    netip.Addr `json:"ip,omitzero"`
	Ports []Port     `json:"ports,omitempty"`
	// External is the target name of an ExternalName Service; its other fields are empty then.
	External string `json:"external,omitempty"`
	// Headless: the Service's name resolves to each of Hosts.
	Headless bool   `json:"headless,omitempty"`
	Hosts    []Host `json:"hosts,omitempty"`
}

// Host is one pod of a headless Service.
type Host struct {
	// Name is its host name, or derived from its address.
	Name string `json:"name"`
	// Pod is its address as home sees it.
	Pod netip.Addr `json:"pod"`
	// IP is where pods of the foreign cluster reach it; the address of a pod that runs there is in Pods.
	IP netip.Addr `json:"ip,omitzero"`
	// Ports are its ports. Those of a pod with an address of its own have a port of the gateway, too.
	Ports []Port `json:"ports,omitempty"`
}

// Listeners are all ports for which the gateway listens.
func (s Service) Listeners() []Port {
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

type Port struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol"` // tcp or udp
	Port     uint16 `json:"port"`     // of the Service
	// Listen is the gateway's port for it.
	Listen uint16 `json:"listen"`
	// Endpoints are the pods behind it, as home sees them.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
}

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
		for _, p := range s.Listeners() {
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

func (g Gateway) Find(namespace, name string) (Service, bool) {
	i := slices.IndexFunc(g.Services, func(s Service) bool { return s.Namespace == namespace && s.Name == name })
	if i < 0 {
		return Service{}, false
	}
	return g.Services[i], true
}

type Status struct {
	Version string `json:"version"`
	// Configured is whether it has a configuration, Digest identifies it.
	Configured bool   `json:"configured"`
	Digest     string `json:"digest,omitempty"`
	// Connected is whether packets of home have arrived lately.
	Connected     bool      `json:"connected"`
	LastHandshake time.Time `json:"lastHandshake,omitzero"`
	Received      uint64    `json:"received"` // bytes
	Sent          uint64    `json:"sent"`
	Flows         Flows     `json:"flows"`
	// Problems are, for example, ports that cannot be opened.
	Problems []string `json:"problems,omitempty"`
}

// Flows are connections through the gateway.
type Flows struct {
	TCP     int    `json:"tcp"`
	UDP     int    `json:"udp"`
	Refused uint64 `json:"refused"` // since start: to unknown destinations, or beyond the bounds
}

// Path is the path between home and a gateway.
type Path struct {
	Kind          string        `json:"kind"`              // direct or stream
	Address       string        `json:"address,omitempty"` // of the gateway; none through the API server
	RTT           time.Duration `json:"rtt"`               // nanoseconds
	Received      uint64        `json:"received"`          // bytes
	Sent          uint64        `json:"sent"`
	LastHandshake time.Time     `json:"lastHandshake,omitzero"`
}
