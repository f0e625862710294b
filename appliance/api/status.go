// Package api is the interface between the command line and the supervisor: JSON over a Unix socket that only root may
// open. It reads the reports of the subsystems and writes nothing.
package api

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/clusterset"
	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/usage"
	"rivulet/fabric/broker"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/offload"
)

// Supervisor is the supervisor of this process.
type Supervisor interface{ Status() Status }

// VClusters has what all virtual clusters use of the machine, by name.
type VClusters interface{ Usages() []VCluster }

// Named has the cluster's name for users and peers, which may change.
type Named interface{ Name() string }

// PlausibleClock has the time, and whether it can be right.
type PlausibleClock interface{ Plausible() (time.Time, bool) }

// Status is everything `rivulet status` shows.
type Status struct {
	Name string `json:"name"`
	// NodeName is that of the first start; Name, for peers, may have changed since.
	NodeName    string    `json:"nodeName"`
	ID          peer.ID   `json:"id"`
	Version     string    `json:"version"`
	NodeAddress string    `json:"nodeAddress"`
	Started     time.Time `json:"started"`
	// Ready is true when pods can be scheduled at home and resolve names.
	Ready bool `json:"ready"`
	// ReadyAfter and ReadyAfterBoot are the times to the first Ready, from the start of the process and of the kernel,
	// nanoseconds.
	ReadyAfter     time.Duration `json:"readyAfter,omitempty"`
	ReadyAfterBoot time.Duration `json:"readyAfterBoot,omitempty"`
	// Waiting is what Ready waits for.
	Waiting string             `json:"waiting,omitempty"`
	Stages  []lifecycle.Status `json:"stages"`
	Host    host.Facts         `json:"host"`
	// PIDs of supervisor, engine and tunnel, in the device's PID namespace.
	PIDs  map[string]int `json:"pids"`
	Peers []peer.View    `json:"peers"`
	// Nodes are the other devices of this cluster. Member is this device's cluster if it is a worker.
	Nodes  []ClusterNode  `json:"nodes,omitempty"`
	Member *Membership    `json:"member,omitempty"`
	Tunnel *tunnel.Status `json:"tunnel,omitempty"`
	// Brokers are those of trust.broker, in a group.
	Brokers []broker.Status `json:"brokers,omitempty"`
	// What is offloaded, borrowed and lent.
	offload.Status
	Pods Pods `json:"pods"`
	// Room is the use and capacity of nodes, by name: of home and the virtual ones.
	Room map[string]Room `json:"room,omitempty"`
	// Footprint is Rivulet's use of the machine.
	Footprint usage.Report `json:"footprint"`
	// Clock is the source of the time, and its reference.
	Clock  clock.Status `json:"clock"`
	Config Config       `json:"config"`
	// Addresses are the device's own on its LANs.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// ClusterSet are the Services shared with peers.
	ClusterSet clusterset.Status `json:"clusterSet"`
	// Services are those of type LoadBalancer that have their addresses.
	Services []loadbalancer.Service `json:"services,omitempty"`
	// StatusPage is its URL for a browser on the LAN; empty while it is off.
	StatusPage string `json:"statusPage,omitempty"`
	// Console is the web console's URL; empty while it is off.
	Console string `json:"console,omitempty"`
	// DatastoreReady is true once the engine's datastore was checked and is sound.
	DatastoreReady bool `json:"datastoreReady"`
	// Upgrade is nil on a device that never had one.
	Upgrade *Upgrade `json:"upgrade,omitempty"`
	// Health are the problems of all components, the worst first.
	Health []health.Problem `json:"health,omitempty"`
}

// Config is the state of the configuration.
type Config struct {
	File   string      `json:"file"`
	From   config.From `json:"from"`
	Loaded time.Time   `json:"loaded"`
	// Broken is set if the file has a mistake; Health has it.
	Broken bool `json:"broken,omitempty"`
	// Pending are changes in progress.
	Pending []string `json:"pending,omitempty"`
}

// Reloaded is the answer to a reload.
type Reloaded struct {
	Config
	// Changed are the keys that have changed.
	Changed []string `json:"changed,omitempty"`
	// Problems are why the file is not used; what was in force stays.
	Problems config.Problems `json:"problems,omitempty"`
}

// Pods counts pods that are not finished.
type Pods struct {
	Home    int `json:"home"`    // of this cluster, here
	Away    int `json:"away"`    // of this cluster, elsewhere
	Tenants int `json:"tenants"` // of other clusters, here
	// VClusters are those of Tenants that are of virtual clusters of this device.
	VClusters int `json:"vclusters,omitempty"`
}

func (n Pods) String() string {
	text := fmt.Sprintf("%d at home, %d away, %d of tenants here", n.Home, n.Away, n.Tenants)
	if n.VClusters > 0 {
		text += fmt.Sprintf(", %d of these of virtual clusters", n.VClusters)
	}
	return text
}

// Room is the capacity of a node, and the requests of its pods.
type Room struct {
	// Allocatable is set for home's own node; a virtual node has its own.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	Requested   corev1.ResourceList `json:"requested"`
	// Pressure are the conditions for which home's kubelet accepts no new pods: DiskPressure and the like.
	Pressure []string `json:"pressure,omitempty"`
	// Pods are those that are not finished.
	Pods         int    `json:"pods"`
	Architecture string `json:"architecture,omitempty"`
}

// Workers returns the names of this cluster's own nodes but this device's, of those whose room is known.
func (s Status) Workers() (names []string) {
	for name, r := range s.Room {
		if name != s.NodeName && r.Allocatable != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Home returns the room of all of this cluster's own nodes together; ok is false until this device's is known.
func (s Status) Home() (sum Room, ok bool) {
	sum, ok = s.Room[s.NodeName]
	for _, name := range s.Workers() {
		r := s.Room[name]
		sum.Allocatable, sum.Requested = added(sum.Allocatable, r.Allocatable), added(sum.Requested, r.Requested)
		sum.Pods += r.Pods
	}
	return sum, ok
}

func added(x, y corev1.ResourceList) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, list := range []corev1.ResourceList{x, y} {
		for name, q := range list {
			have := sum[name]
			have.Add(q)
			sum[name] = have
		}
	}
	return sum
}

// Health is the answer of GET /v1/health.
type Health struct {
	Problems []health.Problem `json:"problems"`
}
