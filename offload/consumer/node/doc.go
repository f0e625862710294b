// Package node keeps the Node object that stands for a target: the virtual node.
//
// It reads the target's offers. It alone writes the Node (labels, capacity,
// conditions) and its lease, through virtual-kubelet's NodeController. Writes
// are made when something changed, at most one a second.
//
// The lease is renewed as long as this process lives, whatever the link does:
// a lost link is a NotReady node with a reason, not an unknown one.
//
// Restart: a node that exists is taken over as it is, and stays as it is until
// the target has spoken or has been silent for too long. Failure as the user
// sees it: the node is NotReady and its Ready condition says why.
package node
