// Package pod runs the pods of a virtual node on its target and copies their status back (docs/design/offload.md, also
// on why it is not virtual-kubelet's PodController). Package translate has the translation in both directions,
// package twin what is done on the target. It reads the pods of home bound to the node, and its own wrappers and away
// pods in the twins. It alone writes the wrappers, the status of the pods bound to the node, the end of their deletion,
// the Secrets with their tokens, and events at home. Restart: wrappers are found by the UID of their home pod; those
// without one are removed after home's API has confirmed it. Failure: a pod that may not run away stays Pending with
// OffloadRefused; while a target is silent, statuses and deleted pods stay unchanged.
package pod
