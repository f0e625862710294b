package pod

// If the provider replaces pods itself (package replacement), a pod with restartPolicy Always needs no ReplicaSet: the
// away pod is its own record. A ReplicaSet is made if the provider refuses the pod, since a ReplicaSet waits for
// capacity by itself. Existing ReplicaSets stay.

// keeps reports whether the target replaces pods itself now.
func (c *Controller) keeps() bool { return c.cfg.Keeps != nil && c.cfg.Keeps() }
