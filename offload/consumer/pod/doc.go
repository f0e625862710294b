// Package pod runs the pods that are bound to a virtual node on its target, and brings back how they do;
// docs/design/offload.md has the whole, and why it is not virtual-kubelet's PodController. Wrap and Status are the two
// directions of the translation, both pure. It reads the pods of home bound to the node, and its own wrappers and away
// pods in the twins. It alone writes the wrappers, the status of the pods bound to the node, the end of their deletion,
// the Secrets with their tokens, and events at home. Restart: wrappers are found again by the UID of their home pod;
// those whose pod is gone are removed after home's API has confirmed it. Failure: a pod that may not run away stays
// Pending with OffloadRefused; while a target is silent statuses and deleted pods stay as they are.
package pod
