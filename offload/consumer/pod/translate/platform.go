package translate

import corev1 "k8s.io/api/core/v1"

// Pin restricts the away pod to nodes of the virtual node's platform: home's scheduler has chosen that platform, and a
// provider may have nodes of several.
func Pin(template *corev1.PodTemplateSpec, os, arch string) {
	for key, value := range map[string]string{corev1.LabelOSStable: os, corev1.LabelArchStable: arch} {
		if value == "" {
			continue // not in the offer yet
		}
		if template.Spec.NodeSelector == nil {
			template.Spec.NodeSelector = map[string]string{}
		}
		template.Spec.NodeSelector[key] = value
	}
}
