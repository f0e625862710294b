package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/homeapi"
	"rivulet/offload/policy"
)

// maxLinks bounds the variables of Services, in bytes: a provider refuses ConfigMaps above a size.
const maxLinks = 512 << 10

// withHomeAddresses adapts the template to a provider that translates home's addresses: the addresses that the pod gets
// of Services and of itself (policy.HomeAddressesOfPods) are home's. This is decided once, when the pod is sent, and
// recorded in the annotation.
func (c *Controller) withHomeAddresses(ctx context.Context, home *corev1.Pod, in *twin, t *corev1.PodTemplateSpec, made string) error {
	api, err := c.cfg.Home.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
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
		c.cfg.Recorder.Eventf(home, corev1.EventTypeWarning, "OffloadNoServiceLinks",
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

// links are the variables last written into a twin.
type links struct {
	mu   sync.Mutex
	data map[string]string
	at   time.Time
}

// addServices writes the variables of home's Services into the twin, unless they are there; afresh skips the memory of
// the last write. tooMany is not zero if they are too large to be written.
func (c *Controller) addServices(ctx context.Context, t *twin, afresh bool) (tooMany int, err error) {
	t.links.mu.Lock()
	defer t.links.mu.Unlock()
	// From the API server's cache, as for a kubelet.
	services, err := c.cfg.Home.CoreV1().Services(t.home).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, fmt.Errorf("offload: the Services of the pod: %w", err)
	}
	data, size := translate.ServiceLinks(services.Items), 0
	for name, value := range data {
		size += len(name) + len(value)
	}
	if size > maxLinks {
		return len(services.Items), nil
	}
	if !afresh && time.Since(t.links.at) < addressAge && maps.Equal(t.links.data, data) {
		return 0, nil
	}
	all := t.client.CoreV1().ConfigMaps(t.name)
	have, err := all.Get(ctx, translate.ServicesMap, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = all.Create(ctx, &corev1.ConfigMap{Data: data, ObjectMeta: metav1.ObjectMeta{Name: translate.ServicesMap,
			Labels: map[string]string{policy.OriginLabel: c.cfg.Cluster}}}, metav1.CreateOptions{FieldManager: policy.FieldManager})
	case err != nil:
	case have.Labels[policy.ReflectedLabel] != "":
		return 0, fmt.Errorf("offload: ConfigMap %s in %s has a name that is Rivulet's own; rename it", translate.ServicesMap, t.home)
	case !maps.Equal(have.Data, data):
		have.Data = data
		_, err = all.Update(ctx, have, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	}
	if err != nil {
		return 0, c.twinError(ctx, t, fmt.Errorf("offload: the variables of Services in the twin: %w", err))
	}
	t.links.data, t.links.at = data, time.Now()
	return 0, nil
}

// keepServices writes the variables again if a container of the pod cannot be created without them.
func (c *Controller) keepServices(ctx context.Context, t *twin, away *corev1.Pod) error {
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
