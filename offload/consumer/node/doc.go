// Package node maintains the Node object of a target: the virtual node. It reads the target's offers. It alone writes
// the Node (labels, capacity, conditions) and its lease, through virtual-kubelet's NodeController, at most once a
// second. The lease is renewed as long as this process lives, so a lost link is a NotReady node with a reason and not
// an unknown one. Restart: an existing node is adopted and stays unchanged until the target has answered, or was silent
// for too long. Failure: the node is NotReady, with the reason in its Ready condition.
package node
