package pod

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReasonMisfit is the event on a pod whose image does not run on the node's platform.
const ReasonMisfit = "ImagePlatform"

// Mismatch returns the image of the away pod that does not run on its machine, with the provider's message; empty if
// none is known. It is pure.
func Mismatch(home, away *corev1.Pod) (image, words string) {
	if away == nil || terminal(away.Status.Phase) {
		return "", ""
	}
	images := map[string]string{}
	for _, list := range [][]corev1.Container{home.Spec.InitContainers, home.Spec.Containers} {
		for i := range list {
			images[list[i].Name] = list[i].Image
		}
	}
	for _, list := range [][]corev1.ContainerStatus{away.Status.InitContainerStatuses, away.Status.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			if c.Started != nil && *c.Started && c.State.Running != nil {
				continue
			}
			var said []string
			if w := c.State.Waiting; w != nil {
				said = append(said, w.Message)
			}
			for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t != nil {
					said = append(said, t.Message)
				}
			}
			for _, text := range said {
				// containerd's message for an index without the platform, the kernel's for a binary of another.
				if images[c.Name] != "" && (strings.Contains(text, "no match for platform") || strings.Contains(text, "exec format error")) {
					return images[c.Name], text
				}
			}
		}
	}
	return "", ""
}

// mismatch evicts a pod whose image does not run on the node's platform, after the API server has begun to keep its
// successor off that platform. A pod without a controller stays, with an event.
func (c *Controller) mismatch(ctx context.Context, home, away *corev1.Pod) error {
	image, words := Mismatch(home, away)
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
	if c.setRefused(home, why) == "" {
		c.cfg.Recorder.Event(home, corev1.EventTypeWarning, ReasonMisfit, why)
	}
	if !owned {
		return nil
	}
	if !kept {
		return errNotYet
	}
	return c.evict(ctx, home)
}
