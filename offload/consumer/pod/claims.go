package pod

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// A pod's claims are objects of home. Those of ephemeral volumes are as well: home's controller makes them, and deletes
// them with the pod. So an away pod has claims only, and their names are replaced by those of the claims in the twin
// before it is sent.

// Unmovable is why a pod cannot run on any other cluster, whatever happens there.
type Unmovable struct{ Why string }

func (u *Unmovable) Error() string { return u.Why }

// awayClaims replaces home's names of claims in a template by their names in the twin.
func (c *Controller) awayClaims(ctx context.Context, namespace string, template *corev1.PodTemplateSpec) error {
	for i := range template.Spec.Volumes {
		claim := template.Spec.Volumes[i].PersistentVolumeClaim
		if claim == nil {
			continue
		}
		if c.cfg.Claim == nil {
			return fmt.Errorf("volumes of %s are not known; see: rivulet status", c.cfg.Target.Name())
		}
		name, why, err := c.cfg.Claim(ctx, namespace, claim.ClaimName)
		if err != nil {
			return fmt.Errorf("claim %s: %w", claim.ClaimName, err)
		}
		if why != "" {
			return errors.New(why)
		}
		claim.ClaimName = name
	}
	return nil
}
