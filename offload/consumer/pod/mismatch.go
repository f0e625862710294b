package pod

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/pod/translate"
)

// ErrNoOther is Fit's answer if no other node could take the pod.
var ErrNoOther = errors.New("no other node has another platform")

// mismatch evicts a pod whose image does not run on the node's platform, after the API server has begun to keep its
// successor off that platform. A pod that nobody makes again stays, with an event; so does one that nothing else could
// take.
func (c *Controller) mismatch(ctx context.Context, home, away *corev1.Pod) error {
	image, words := translate.Mismatch(home, away)
	if image == "" || c.cfg.Fit == nil {
		return nil
	}
	os, arch := c.cfg.Nodes.Platform(home.Spec.NodeName)
	if arch == "" {
		return nil
	}
	kept, err := c.cfg.Fit.Unfit(ctx, home.Namespace, image, arch)
	alone := errors.Is(err, ErrNoOther)
	if err != nil && !alone {
		return err
	}
	why := fmt.Sprintf("image %s does not run on %s (%s/%s): %.300s", image, home.Spec.NodeName, os, arch, words)
	moves := false
	switch owner := metav1.GetControllerOf(home); {
	case alone:
		why += fmt.Sprintf("; use an image for it: docker buildx build --platform %s/%s", os, arch)
	case owner == nil:
		why += "; nobody makes this pod again: delete it and make another, which goes elsewhere"
	default:
		moves = owner.Kind != "DaemonSet" // whose next pod would be on this node, too
	}
	if c.memory.setRefused(home.UID, why) == "" {
		c.cfg.Home.Recorder.Event(home, corev1.EventTypeWarning, translate.ReasonMisfit, why)
	}
	if !moves {
		return nil
	}
	if !kept {
		return errNotYet
	}
	return evict(ctx, c.cfg.Home.Client, home)
}
