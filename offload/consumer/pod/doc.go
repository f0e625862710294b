// Package pod runs the pods that are bound to a virtual node on its target, and
// brings back how they do.
//
// What stands on the target for a pod is an ordinary ReplicaSet of one, or a
// Job, in the twin namespace: it outlives this process, this cluster and the
// link, and a pod that finished stays finished. Wrap and Status are the two
// directions of the translation, both pure.
//
//	home pod ──Wrap──▶ ReplicaSet/Job ──(provider)──▶ away pod ──Status──▶ home pod's status
//
// The Controller reads the pods of home bound to the node, and its own wrappers
// and away pods in the twins. It alone writes the wrappers, the status of the
// pods bound to the node, the end of their deletion, the Secrets with their tokens,
// and events at home that say what the provider says of them.
//
// Restart: nothing needs to be remembered (that a pod was sent is, until home's status
// of it says so, to write that later and less often). Wrappers are found again by the UID of their
// home pod (policy.HomeUIDLabel); those whose pod is gone are removed, after
// home's API itself has said so.
//
// Failure as the user sees it: a pod that may not run away stays Pending with
// reason OffloadRefused and an event that names the fields; one that the
// provider cannot start stays Pending with the provider's reason. While the
// target cannot be reached statuses stay as they were, pods keep running, and
// deleted pods stay Terminating.
//
// Why not virtual-kubelet's PodController: it removes a pod from home when its
// grace period is over without asking the provider, it fails pods of
// restartPolicy Never when a create meets a dead link, it knows pods by name and
// not by UID, and it overwrites conditions of other writers. Each of these would
// run a Job or a StatefulSet's pod twice, or lose it, in a partition.
package pod
