package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate"
)

// mismatch evicts a pod whose image does not run on the node's platform, after the API server has begun to keep its
// successor off that platform. A pod without a controller stays, with an event.
func (c *Controller) mismatch(ctx context.Context, home, away *corev1.Pod) error {
	image, words := translate.Mismatch(home, away)
	if image == "" || c.cfg.Unfit == nil || c.cfg.Platform == nil {
		return nil
	}
	os, arch := c.cfg.Platform(home.Spec.NodeName)
	if arch == "" {
		return nil
	}
	kept, err := c.cfg.Unfit(ctx, home.Namespace, image, arch)
	if err != nil {
		return err
	}
	why := fmt.Sprintf("image %s does not run on %s (%s/%s): %.300s", image, home.Spec.NodeName, os, arch, words)
	owned := metav1.GetControllerOf(home) != nil
	if !owned {
		why += "; nobody makes this pod again: delete it and make another, which goes elsewhere"
	}
	if c.memory.setRefused(home.UID, why) == "" {
		c.cfg.Recorder.Event(home, corev1.EventTypeWarning, translate.ReasonMisfit, why)
	}
	if !owned {
		return nil
	}
	if !kept {
		return errNotYet
	}
	return evict(ctx, c.cfg.Home, home)
}
