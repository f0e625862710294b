package pod

import corev1 "k8s.io/api/core/v1"

// pin keeps the away pod on nodes of the platform that the virtual node has: home's
// scheduler chose it for that, and a provider may have nodes of several.
func pin(template *corev1.PodTemplateSpec, os, arch string) {
	for key, value := range map[string]string{corev1.LabelOSStable: os, corev1.LabelArchStable: arch} {
		if value == "" {
			continue // the provider has not said yet
		}
		if template.Spec.NodeSelector == nil {
			template.Spec.NodeSelector = map[string]string{}
		}
		template.Spec.NodeSelector[key] = value
	}
}
