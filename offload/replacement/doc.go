// Package replacement keeps pods of other clusters alive that are their own record: a finalizer on the pod itself keeps
// it in the API until another is there in its place (docs/design/offload.md). The Keeper runs where the pods do: it
// marks a pod that is going, makes another, and lets the first go; it alone writes successors, marks, and the
// finalizers of marked pods and of namespaces that are going. Home ends a pod with End, which takes the finalizer off
// one that is not marked, guarded by its version: once home has ended it there is none. Where the API server refuses
// the successor a ReplicaSet waits in its place; where it refuses that, the pod is let go, and home makes it again.
// Restart: all that is remembered is in the pods, and each step may be repeated. Failure: a pod is Terminating beyond
// its grace period.
package replacement
