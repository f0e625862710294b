package translate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ReasonMisfit is the event on a pod whose image does not run on the node's platform.
const ReasonMisfit = "ImagePlatform"

// Mismatch returns the image of the away pod that does not run on its machine, with the provider's message; empty if
// none is known. It is pure.
func Mismatch(home, away *corev1.Pod) (image, words string) {
	if away == nil || Terminal(away.Status.Phase) {
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
