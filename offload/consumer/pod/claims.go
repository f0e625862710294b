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

// Claims are those of home: a volume.Controller.
type Claims interface {
	// AwayClaimOf returns the name in the twin, on that target, of a claim of home; or why it has none. The error is a
	// *volume.Foreign if no target will ever have one.
	AwayClaimOf(ctx context.Context, namespace, name, target string) (claim, why string, err error)
}

// awayClaims replaces home's names of claims in a template by their names in the twin.
func (c *Controller) awayClaims(ctx context.Context, namespace string, template *corev1.PodTemplateSpec) error {
	for i := range template.Spec.Volumes {
		claim := template.Spec.Volumes[i].PersistentVolumeClaim
		if claim == nil {
			continue
		}
		if c.cfg.Claims == nil {
			return fmt.Errorf("volumes of %s are not known; see: rivulet status", c.cfg.Target.Name())
		}
		name, why, err := c.cfg.Claims.AwayClaimOf(ctx, namespace, claim.ClaimName, c.cfg.Target.ID())
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
