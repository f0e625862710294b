package pod

import "context"

// The twin of a namespace is made and watched when the namespace is offloaded, not with its first pod. Earlier pods
// wait at home, Pending, until
//
//	its twin has its quota and this cluster its rights   Target.Namespace returns then
//	the watches of the twin are complete
//	reflection has made what every pod there needs       furnish
//
// so that no pod is refused, or started without its mounts, because it came too early.
// preparers is how many twins of one target are requested concurrently.
const preparers = 4

// Prepare makes and watches the twin of a namespace, if it is offloaded. It does not block, and may be called at any
// time, repeatedly, before Run as well.
func (c *Controller) Prepare(namespace string) {
	if c.twins.Get(namespace) == nil {
		c.ahead.Add(namespace)
	}
}

// prepareTwin carries out Prepare. It logs no failures, since reflection requests the same twin and logs them.
func (c *Controller) prepareTwin(ctx context.Context, namespace string) {
	if c.twins.Get(namespace) != nil || !c.offloaded(namespace) {
		c.ahead.Forget(namespace)
		return
	}
	bounded, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	name, err := c.cfg.Target.Namespace(bounded, namespace)
	if err != nil {
		c.ahead.AddRateLimited(namespace)
		return
	}
	c.ahead.Forget(namespace)
	c.watch(namespace, name)
}
