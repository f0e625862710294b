// Package node keeps the Node object that stands for a target: the virtual node. It reads the target's offers. It alone
// writes the Node (labels, capacity, conditions) and its lease, through virtual-kubelet's NodeController, at most once
// a second. The lease is renewed as long as this process lives: a lost link is a NotReady node with a reason, not an
// unknown one. Restart: an existing node is taken over and stays as it is until the target has answered or was silent
// for too long. Failure: the node is NotReady and its Ready condition gives the reason.
package node
