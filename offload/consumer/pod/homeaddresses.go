package pod

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/consumer/pod/twin"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

// withHomeAddresses adapts the template to a provider that translates home's addresses: the addresses that the pod gets
// of Services and of itself (policy.HomeAddressesOfPods) are home's. This is decided once, when the pod is sent, and
// recorded in the annotation.
func (c *Controller) withHomeAddresses(ctx context.Context, home *corev1.Pod, in *twin.Twin, t *corev1.PodTemplateSpec, made string) error {
	api, err := c.cfg.Home.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("offload: the address of home's API server: %w", err)
	}
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[policy.HomeAddressesAnnotation] = made
	if made == policy.HomeAddressesOfPods {
		translate.LeaveToProvider(&t.Spec)
	}
	if last := len(t.Spec.HostAliases) - 1; last >= 0 && slices.Contains(t.Spec.HostAliases[last].Hostnames, homeapi.Host) { // see toHomeAPI
		t.Spec.HostAliases[last].IP = api.Spec.ClusterIP
	}
	if !ptr.Deref(t.Spec.EnableServiceLinks, true) {
		return nil
	}
	t.Spec.EnableServiceLinks = ptr.To(false) // the provider's variables have its own addresses
	services, err := c.addServices(ctx, in, false)
	if err != nil {
		return err
	}
	if services > 0 {
		c.cfg.Home.Recorder.Eventf(home, corev1.EventTypeWarning, "OffloadNoServiceLinks",
			"the variables of %d Services are too many for a pod that runs away, and are left out; use names, or enableServiceLinks: false", services)
		return nil
	}
	for _, list := range [][]corev1.Container{t.Spec.InitContainers, t.Spec.Containers} {
		for i := range list {
			translate.DerivedFrom(translate.ServicesMap, &list[i])
		}
	}
	return nil
}

// addServices writes the variables of home's Services into the twin: see PutServices.
func (c *Controller) addServices(ctx context.Context, t *twin.Twin, afresh bool) (tooMany int, err error) {
	tooMany, err = t.PutServices(ctx, afresh, func() (*corev1.ServiceList, error) { // from the API server's cache, as for a kubelet
		return c.cfg.Home.Client.CoreV1().Services(t.Home).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	})
	return tooMany, c.twinError(ctx, t, err)
}

// keepServices writes the variables again if a container of the pod cannot be created without them.
func (c *Controller) keepServices(ctx context.Context, t *twin.Twin, away *corev1.Pod) error {
	if away == nil || !translate.Derives(&away.Spec, translate.ServicesMap) {
		return nil
	}
	for _, st := range slices.Concat(away.Status.InitContainerStatuses, away.Status.ContainerStatuses) {
		if w := st.State.Waiting; w != nil && w.Reason == "CreateContainerConfigError" {
			_, err := c.addServices(ctx, t, true)
			return err
		}
	}
	return nil
}
