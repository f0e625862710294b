// Package api is how the command line asks the supervisor: JSON over a unix
// socket that only root may open. It reads what the subsystems report and
// writes nothing.
package api

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"rivulet/appliance/addons/loadbalancer"
	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/appliance/lifecycle"
	"rivulet/appliance/machine/clock"
	"rivulet/appliance/machine/host"
	"rivulet/appliance/machine/usage"
	"rivulet/fabric/peer"
	"rivulet/fabric/tunnel"
	"rivulet/offload"
)

// Status is everything `rivulet status` shows.
type Status struct {
	Name string `json:"name"`
	// NodeName is that of the first start; Name, for peers, may be another since.
	NodeName    string    `json:"nodeName"`
	ID          peer.ID   `json:"id"`
	Version     string    `json:"version"`
	NodeAddress string    `json:"nodeAddress"`
	Started     time.Time `json:"started"`
	// Ready is true when pods can be scheduled at home and resolve names.
	Ready bool `json:"ready"`
	// ReadyAfter and ReadyAfterBoot are how long it took to be Ready for the first
	// time, from the start of the process and of the kernel, nanoseconds.
	ReadyAfter     time.Duration `json:"readyAfter,omitempty"`
	ReadyAfterBoot time.Duration `json:"readyAfterBoot,omitempty"`
	// Waiting says what Ready waits for.
	Waiting string             `json:"waiting,omitempty"`
	Stages  []lifecycle.Status `json:"stages"`
	Host    host.Facts         `json:"host"`
	// PIDs of supervisor, engine and tunnel, as seen in the device's PID namespace.
	PIDs   map[string]int `json:"pids"`
	Peers  []peer.View    `json:"peers"`
	Tunnel *tunnel.Status `json:"tunnel,omitempty"`
	// What is offloaded, borrowed and lent.
	offload.Status
	Pods Pods `json:"pods"`
	// Room is what pods ask for, by the name of the node: of home and the virtual ones.
	Room map[string]Room `json:"room,omitempty"`
	// Footprint is what Rivulet costs the machine.
	Footprint usage.Report `json:"footprint"`
	// Clock is where the time comes from, and what it is compared with.
	Clock  clock.Status `json:"clock"`
	Config Config       `json:"config"`
	// Addresses are the device's own on its LANs.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Services are those of type LoadBalancer that have their addresses.
	Services []loadbalancer.Service `json:"services,omitempty"`
	// StatusPage is where a browser on the LAN finds it; empty while it is off.
	StatusPage string `json:"statusPage,omitempty"`
	// DatastoreReady is true once the engine's datastore was looked at and is in order.
	DatastoreReady bool `json:"datastoreReady"`
	// Upgrade is nil on a device that never had one.
	Upgrade *Upgrade `json:"upgrade,omitempty"`
	// Health is what is wrong, whichever part knows it, the worst first.
	Health []health.Problem `json:"health,omitempty"`
}

// Config says which configuration is in force.
type Config struct {
	File   string      `json:"file"`
	From   config.From `json:"from"`
	Loaded time.Time   `json:"loaded"`
	// Broken is set where the file has a mistake; Health has it.
	Broken bool `json:"broken,omitempty"`
	// Pending are changes that are being made at this moment.
	Pending []string `json:"pending,omitempty"`
}

// Reloaded is the answer to a reload.
type Reloaded struct {
	Config
	// Changed are the keys that are other than before.
	Changed []string `json:"changed,omitempty"`
	// Problems say why the file is not used; what was in force stays.
	Problems config.Problems `json:"problems,omitempty"`
}

// Pods counts pods that are not finished.
type Pods struct {
	Home   int `json:"home"`   // ours, here
	Away   int `json:"away"`   // ours, elsewhere
	Guests int `json:"guests"` // of other clusters, here
}

func (n Pods) String() string {
	return fmt.Sprintf("%d at home, %d away, %d of tenants here", n.Home, n.Away, n.Guests)
}

// Room is what there is on a node, and what the pods there ask for.
type Room struct {
	// Allocatable is set of home's own node; a virtual node has its own.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	Requested   corev1.ResourceList `json:"requested"`
	// Pressure names the conditions for which home's kubelet takes no new pods: DiskPressure and the like.
	Pressure []string `json:"pressure,omitempty"`
	// Pods are those that are not finished.
	Pods         int    `json:"pods"`
	Architecture string `json:"architecture,omitempty"`
}

// Health is the answer of GET /v1/health.
type Health struct {
	Problems []health.Problem `json:"problems"`
}
