package api

import (
	"net/netip"
	"time"

	"rivulet/fabric/peer"
)

// Membership is the cluster of a worker.
type Membership struct {
	Cluster string     `json:"cluster"` // its name
	Server  peer.ID    `json:"server"`
	Address netip.Addr `json:"address"` // of the server's node
	// Removed: the device is no node of it any more, and runs nothing.
	Removed bool `json:"removed,omitempty"`
}

// ClusterNode is another device of this cluster, as the tunnel sees it.
type ClusterNode struct {
	Node    string        `json:"node"` // empty for the server as a worker sees it
	ID      peer.ID       `json:"id"`
	State   peer.State    `json:"state"`
	Reason  string        `json:"reason,omitempty"` // as of a peer
	Path    string        `json:"path,omitempty"`   // in use
	RTT     time.Duration `json:"rtt,omitempty"`    // nanoseconds
	Version string        `json:"version,omitempty"`
	Standby bool          `json:"standby,omitempty"` // it may become the server
	Behind  bool          `json:"behind,omitempty"`  // not now: it has not the server's present state
}

// NodeWord is a request of `rivulet join`, `leave`, `token` or `nodes`.
type NodeWord struct {
	Token string        `json:"token,omitempty"` // to join with
	Node  string        `json:"node,omitempty"`  // to remove, or to be a standby
	Force bool          `json:"force,omitempty"`
	Off   bool          `json:"off,omitempty"`  // a standby no more
	Life  time.Duration `json:"life,omitempty"` // of a new token; 0 is the default
}

// JoinedCluster is the cluster that a device has joined, and its node's name there; or the one that it has left.
type JoinedCluster struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node,omitempty"`
}
