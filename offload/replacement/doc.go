// Package replacement keeps pods of other clusters alive that are their own record (docs/design/offload.md): a
// finalizer on the pod itself keeps it in the API until its successor exists. The Controller runs on the cluster of the
// pods. It marks a pod that is being deleted, makes its successor, and releases the pod. It alone writes successors,
// marks, and the finalizers of marked pods and of namespaces being deleted. Home ends a pod with End, which removes the
// finalizer of an unmarked one, guarded by its version, so that it has no successor. If the API server refuses the
// successor, a ReplicaSet waits in its place; if it refuses that, the pod is released, and home makes it again.
// Restart: all state is in the pods, and each step is idempotent. Failure: a pod is Terminating beyond its grace
// period.
package replacement
