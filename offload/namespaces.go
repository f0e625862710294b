package offload

// Offloaded reports whether pods of the namespace may go to the target with the ID, as
// far as is known now.
func (o *Offload) Offloaded(namespace, id string) bool {
	o.mu.Lock()
	var name string
	if s := o.stacks[id]; s != nil {
		if name = s.name; name == "" {
			name = s.spec.Name
		}
	}
	o.mu.Unlock()
	ns, ok := o.policy.Get(namespace)
	return ok && name != "" && ns.Allows(name)
}

// NamespacesChanged returns a channel that gets a value when namespaces may go
// elsewhere than before, and the function that ends the subscription.
func (o *Offload) NamespacesChanged() (<-chan struct{}, func()) { return o.policy.Changed() }
