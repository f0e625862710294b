// Package replacement keeps pods of other clusters alive that are their own record. Such a
// pod (see Keep) has no ReplicaSet around it: what remembers that there has to be one is
// the finalizer on the pod itself, so that a pod which is deleted, evicted or lost stays
// in the API until another is there in its place.
//
//	          deleted, evicted, lost                   1 mark     2 make another    3 let go
//	kept ────────────────────────────▶ kept, going ──▶ marked ──▶ marked + kept ──▶ gone + kept
//	  │ home ends it: End                  │ End          │
//	  └───────────▶ let go, going ◀────────┘              └─ home waits: 2 and 3 come first
//
// The Keeper runs where the pods do. It reads pods and their namespaces. It alone makes
// the successors, takes the finalizer off marked pods, and, where a namespace is going,
// off all of its pods. Home's end of it is End: who ends a pod takes the finalizer off
// one that is not marked, guarded by its version, so that of both one is first. What
// matters of that is a pod that must not run twice: once home has ended it, and sees no
// other, there will be none.
//
// Where the API server refuses the successor (no room, mostly) a ReplicaSet waits in its
// place, as it would have done from the beginning; where it refuses that, too, the pod is
// let go, and home makes it again: nothing that is lent can hold up a drain or a namespace.
//
// Restart: all that is remembered is in the pods; each step may be repeated. Failure as
// the user sees it: a pod that is Terminating for longer than its grace period, while the
// supervisor is down; the log says what cannot be done.
package replacement
