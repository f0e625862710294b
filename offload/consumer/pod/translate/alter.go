package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// SpecChange is the strategic merge patch for the mutable fields of a pod's spec: images, added tolerations, the
// deadline. has is the away pod's spec; was and is are home's, before and now. The provider's own changes stay.
func SpecChange(has, was, is *corev1.PodSpec) map[string]any {
	patch := map[string]any{}
	if images := changedImages(has.Containers, was.Containers, is.Containers); len(images) > 0 {
		patch["containers"] = images
	}
	if images := changedImages(has.InitContainers, was.InitContainers, is.InitContainers); len(images) > 0 {
		patch["initContainers"] = images
	}
	all := slices.Clone(has.Tolerations)
	for _, t := range is.Tolerations {
		if !slices.ContainsFunc(all, func(o corev1.Toleration) bool { return equality.Semantic.DeepEqual(o, t) }) {
			all = append(all, t)
		}
	}
	if len(all) > len(has.Tolerations) {
		patch["tolerations"] = all
	}
	if d := is.ActiveDeadlineSeconds; d != nil && (has.ActiveDeadlineSeconds == nil || *has.ActiveDeadlineSeconds != *d) {
		patch["activeDeadlineSeconds"] = *d
	}
	return patch
}

func changedImages(has, was, is []corev1.Container) (out []map[string]string) {
	for i := range is {
		name, image := is[i].Name, is[i].Image
		if h := imageOf(has, name); h != "" && h != image && imageOf(was, name) != image {
			out = append(out, map[string]string{"name": name, "image": image})
		}
	}
	return out
}

// TakeImages gives the containers the images of those of the same names.
func TakeImages(to, from []corev1.Container) {
	for i := range to {
		if image := imageOf(from, to[i].Name); image != "" {
			to[i].Image = image
		}
	}
}

func imageOf(list []corev1.Container, name string) string {
	for i := range list {
		if list[i].Name == name {
			return list[i].Image
		}
	}
	return ""
}

// Difference is the merge patch from has to is. was are the keys that this cluster has set there; others are not
// touched.
func Difference(has, was, is map[string]string) map[string]any {
	patch := map[string]any{}
	for k, v := range is {
		if got, ok := has[k]; !ok || got != v {
			patch[k] = v
		}
	}
	for k := range was {
		_, wanted := is[k]
		if _, there := has[k]; there && !wanted {
			patch[k] = nil
		}
	}
	return patch
}
