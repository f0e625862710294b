package translate

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate/translatetest"
)

// What a target leaves out is named by its path; what it adds, changes or reorders is not.
func TestDroppedFieldsAreNamed(t *testing.T) {
	sent := func() *corev1.PodSpec {
		w, err := Wrap(translatetest.Web(), "home-id", "10.43.0.9")
		if err != nil {
			t.Fatal(err)
		}
		s := w.Template().Spec
		s.HostUsers = ptr.To(false)
		s.HostnameOverride = ptr.To("x")
		s.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		s.SecurityContext = &corev1.PodSecurityContext{SupplementalGroups: []int64{3, 4}, SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicyStrict)}
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "m:1"}}},
			corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "model", MountPath: "/m"}, corev1.VolumeMount{Name: "model", MountPath: "/n", SubPath: "n"})
		s.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1}, {ContainerPort: 2, Protocol: corev1.ProtocolUDP}}
		s.Containers = append(s.Containers, corev1.Container{Name: "two", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyNever),
			RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}})
		return &s
	}
	volume := func(s *corev1.PodSpec, name string) *corev1.Volume {
		return &s.Volumes[slices.IndexFunc(s.Volumes, func(v corev1.Volume) bool { return v.Name == name })]
	}
	for what, c := range map[string]struct {
		change func(*corev1.PodSpec)
		want   []string
	}{
		"nothing": {func(*corev1.PodSpec) {}, nil},
		"additions and other values": {func(s *corev1.PodSpec) {
			s.Containers = append([]corev1.Container{{Name: "injected"}}, s.Containers...)
			slices.Reverse(s.Volumes)
			slices.Reverse(s.Containers[1].Ports)
			s.Containers[1].Image, s.TerminationGracePeriodSeconds, s.Priority = "other", ptr.To[int64](5), ptr.To[int32](0)
			s.SecurityContext.SupplementalGroups = []int64{4, 5, 3}
		}, nil},
		"what may be left out": {func(s *corev1.PodSpec) { s.Tolerations, s.HostnameOverride = nil, nil }, nil},
		"what is empty":        {func(s *corev1.PodSpec) { volume(s, "tmp").EmptyDir = nil }, nil},
		"an image volume becomes an empty folder": {func(s *corev1.PodSpec) {
			volume(s, "model").VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}, []string{"spec.volumes[model].image"}},
		"an image volume goes with its mounts": {func(s *corev1.PodSpec) {
			s.Volumes = slices.DeleteFunc(s.Volumes, func(v corev1.Volume) bool { return v.Name == "model" })
			s.Containers[0].VolumeMounts = slices.DeleteFunc(s.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "model" })
		}, []string{"spec.containers[web].volumeMounts[model]", "spec.containers[web].volumeMounts[model]", "spec.volumes[model]"}},
		"one path of two mounts": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts[len(s.Containers[0].VolumeMounts)-1].SubPath = ""
		},
			[]string{"spec.containers[web].volumeMounts[model].subPath"}},
		"fields of newer versions": {func(s *corev1.PodSpec) {
			s.HostUsers, s.Resources, s.SecurityContext.SupplementalGroupsPolicy = nil, nil, nil
			s.Containers[1].RestartPolicy, s.Containers[1].RestartPolicyRules = nil, nil
		}, []string{"spec.containers[two].restartPolicy", "spec.containers[two].restartPolicyRules", "spec.hostUsers", "spec.resources", "spec.securityContext.supplementalGroupsPolicy"}},
		"a value of a list": {func(s *corev1.PodSpec) { s.SecurityContext.SupplementalGroups = []int64{4} }, []string{"spec.securityContext.supplementalGroups[0]"}},
		"a port":            {func(s *corev1.PodSpec) { s.Containers[0].Ports[1].Protocol = "" }, []string{"spec.containers[web].ports[1].protocol"}},
	} {
		kept := sent().DeepCopy()
		c.change(kept)
		got, _ := errors.AsType[DroppedError](Dropped(sent(), kept))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
