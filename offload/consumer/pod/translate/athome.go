package translate

import (
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// asAtHome replaces what a target's kubelet reports of the target's own additions to the container: other names of the
// image, requests and limits that home's spec does not have (a LimitRange there), mounts of volumes that it does not
// have. old is home's last status of the container, nil without one.
func asAtHome(st, old *corev1.ContainerStatus, spec *corev1.Container) {
	was := ""
	if old != nil {
		was = old.Image
	}
	st.Image, st.ImageID = imageAtHome(st.Image, st.ImageID, spec.Image, was)
	st.AllocatedResources = onlyOf(spec.Resources.Requests, st.AllocatedResources)
	if r := st.Resources; r != nil {
		r.Requests, r.Limits = onlyOf(spec.Resources.Requests, r.Requests), onlyOf(spec.Resources.Limits, r.Limits)
	}
	st.VolumeMounts = slices.DeleteFunc(st.VolumeMounts, func(m corev1.VolumeMountStatus) bool {
		return !slices.ContainsFunc(spec.VolumeMounts, func(s corev1.VolumeMount) bool { return s.Name == m.Name && s.MountPath == m.MountPath })
	})
}

// onlyOf returns the resources that are also in spec; nil if there are none.
func onlyOf(spec, all corev1.ResourceList) (out corev1.ResourceList) {
	for name, q := range all {
		if _, there := spec[name]; there {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// imageAtHome returns the names that home's kubelet gives an image and its content. A provider has the images of other
// clusters under a registry that does not exist, in a path of the consumer, and reports whichever of its names of the
// same content comes first. While a container with the image of before still runs, that is was.
func imageAtHome(image, id, spec, was string) (string, string) {
	if id == "" && (image == "" || image == spec) {
		return image, id // nothing is pulled yet
	}
	ref, err := reference.ParseDockerRef(spec)
	if err != nil {
		return spec, ""
	}
	if before, err := reference.ParseDockerRef(was); err == nil && before.String() == was {
		if there := strings.Replace(was, ":", "__", strings.Count(before.Name(), ":")); image == was || strings.HasSuffix(image, "/"+there) {
			ref = before
		}
	}
	switch _, digest, found := strings.Cut(id, "@"); {
	case found:
		id = ref.Name() + "@" + digest
	case id != "" && !strings.HasPrefix(id, "sha256:"):
		id = ref.String()
	}
	return ref.String(), id
}

// podResources returns the pod's own resources in a status, as far as home's spec has them: a provider limits the memory
// of pods without a limit by these.
func podResources(spec *corev1.PodSpec, from *corev1.PodStatus) (corev1.ResourceList, *corev1.ResourceRequirements) {
	if spec.Resources == nil {
		return nil, nil
	}
	r := from.Resources.DeepCopy()
	if r != nil {
		r.Requests, r.Limits = onlyOf(spec.Resources.Requests, r.Requests), onlyOf(spec.Resources.Limits, r.Limits)
	}
	return onlyOf(spec.Resources.Requests, from.AllocatedResources), r
}

// timesAtHome bounds the times of a container's states, which are by the target's clock, to now: home's controllers
// compare them with their own. What home has of the same run stays.
func timesAtHome(st, old *corev1.ContainerStatus) {
	if old == nil {
		old = &corev1.ContainerStatus{}
	}
	if r, was := st.State.Running, old.State.Running; r != nil {
		if was != nil && st.ContainerID == old.ContainerID {
			r.StartedAt = was.StartedAt
		}
		r.StartedAt = timeAtHome(r.StartedAt, metav1.Time{})
	}
	for _, end := range []*corev1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated} {
		if end == nil {
			continue
		}
		for _, was := range []*corev1.ContainerStateTerminated{old.State.Terminated, old.LastTerminationState.Terminated} {
			if was != nil && end.ContainerID != "" && was.ContainerID == end.ContainerID && was.ExitCode == end.ExitCode && was.Reason == end.Reason {
				end.StartedAt, end.FinishedAt = was.StartedAt, was.FinishedAt
			}
		}
		end.StartedAt, end.FinishedAt = timeAtHome(end.StartedAt, metav1.Time{}), timeAtHome(end.FinishedAt, metav1.Time{})
	}
}
