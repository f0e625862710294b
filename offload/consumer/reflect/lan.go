package reflect

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"rivulet/offload/consumer/homecache"
	"rivulet/offload/policy"
)

const (
	reasonNotOpened, reasonOpened = "NotOpened", "Opened"
	lanKind                       = "Service of the LAN"
	// lanClass is the loadBalancerClass of Services for the LAN on devices.
	lanClass = "rivulet.dev/lan"
)

// lanServices opens Services of types LoadBalancer and NodePort on the LAN of the target, for a home without a node.
// Each is reflected a second time, with home's selector, and the target assigns its ports (tenancy.LAN). Ports and
// address are copied back: as node ports, as the status, and in an event.
type lanServices struct {
	space    *space
	services *kindReflector[*corev1.Service]
}

func withLAN(s *space, services *kindReflector[*corev1.Service]) mirror {
	services.seconds = append(services.seconds, second[*corev1.Service]{prefix: policy.LANServicePrefix, bare: true, make: func(at, twin *corev1.Service) bool {
		if !wantsLAN(at) || noLAN(at) != "" {
			return false
		}
		twin.Spec.Selector, twin.Spec.ClusterIP = maps.Clone(at.Spec.Selector), ""
		twin.Labels, twin.Annotations = map[string]string{policy.LANLabel: "true"}, nil
		if have, there := get[*corev1.Service](services.twin, s.twin, secondName(policy.LANServicePrefix, at.Name)); there {
			keepGranted(twin, have)
		}
		return true
	}})
	before := services.touches
	services.touches = func(name string) (also []key) {
		if before != nil {
			also = before(name)
		}
		if strings.HasPrefix(name, policy.LANServicePrefix) {
			if source, is := services.firstOf(name); is != nil {
				name = source.Name
			}
		}
		return append(also, key{lanKind, name})
	}
	return &lanServices{s, services}
}

// keepGranted keeps what the target has assigned, for ports that are the same.
func keepGranted(want, have *corev1.Service) {
	for _, key := range []string{policy.LANAddressAnnotation, policy.LANRefusedAnnotation} {
		if value, said := have.Annotations[key]; said {
			metav1.SetMetaDataAnnotation(&want.ObjectMeta, key, value)
		}
	}
	if ports, ok := grantedPorts(want.Spec.Ports, have); ok {
		want.Spec.Type, want.Spec.Ports = corev1.ServiceTypeNodePort, ports
	}
}

// grantedPorts are the ports with the node ports that the target's Service has for them; false if some are missing.
func grantedPorts(ports []corev1.ServicePort, have *corev1.Service) ([]corev1.ServicePort, bool) {
	ports = slices.Clone(ports)
	for i := range ports {
		at := slices.IndexFunc(have.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Name == ports[i].Name && p.Protocol == ports[i].Protocol && p.NodePort != 0
		})
		if at < 0 {
			return nil, false
		}
		ports[i].NodePort = have.Spec.Ports[at].NodePort
	}
	return ports, have.Spec.Type == corev1.ServiceTypeNodePort
}

// wantsLAN reports whether the Service is for the LAN and not for another controller.
func wantsLAN(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer && ptr.Deref(s.Spec.LoadBalancerClass, lanClass) == lanClass
}

// noLAN is why the Service cannot be opened as it is; empty if it can.
func noLAN(s *corev1.Service) string {
	switch {
	case len(s.Spec.Selector) == 0:
		return "a Service without a selector leads to no pods of its own; give it spec.selector"
	case len(s.Spec.LoadBalancerSourceRanges) > 0:
		return "ports are open to the whole LAN; leave spec.loadBalancerSourceRanges out if that is acceptable, or use an Ingress"
	}
	return ""
}

// informers are those of Services.
func (l *lanServices) informers() (*homecache.Informer, cache.SharedIndexInformer) { return nil, nil }
func (l *lanServices) names() []string                                             { return nil }
func (l *lanServices) extra(string) []key                                          { return nil }

func (l *lanServices) reconcile(ctx context.Context, name string) error {
	id := key{lanKind, name}
	home, ok := get[*corev1.Service](l.services.home, l.space.home, name)
	if !ok || home.DeletionTimestamp != nil || !wantsLAN(home) {
		l.space.settled(id)
		return nil
	}
	why := noLAN(home)
	if !l.services.follows(home) {
		why = "it stays inside by annotation " + policy.ReflectAnnotation + "; remove that"
	}
	want := home.DeepCopy()
	want.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	address := ""
	if twin, there := get[*corev1.Service](l.services.twin, l.space.twin, secondName(policy.LANServicePrefix, name)); there && why == "" {
		if why = twin.Annotations[policy.LANRefusedAnnotation]; why == "" {
			ports, all := grantedPorts(home.Spec.Ports, twin)
			if address = twin.Annotations[policy.LANAddressAnnotation]; !all || address == "" {
				return nil // not decided yet
			}
			want.Spec.Ports = ports
			if home.Spec.Type == corev1.ServiceTypeLoadBalancer {
				want.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
			}
		}
	}
	if address == "" && why == "" && len(home.Status.LoadBalancer.Ingress) == 0 {
		return nil // not decided yet
	}
	changed, err := l.write(ctx, home, want)
	switch {
	case err != nil:
		return err
	case why != "":
		l.space.report(id, home, reasonNotOpened, fmt.Sprintf("type %s opens nothing on the LAN: %s. Open it by an Ingress, for which the device's owner lends a class, or for yourself: kubectl port-forward service/%s",
			home.Spec.Type, why, name))
		return nil
	case changed && address != "":
		l.space.recorder.Event(home, corev1.EventTypeNormal, reasonOpened, "open on the LAN: "+opened(want.Spec.Ports, address))
	}
	l.space.settled(id)
	return nil
}

// write updates the Service at home.
func (l *lanServices) write(ctx context.Context, home, want *corev1.Service) (changed bool, err error) {
	api := l.space.clients.home.CoreV1().Services(l.space.home)
	options := metav1.UpdateOptions{FieldManager: policy.FieldManager}
	if !equality.Semantic.DeepEqual(home.Spec.Ports, want.Spec.Ports) {
		status := want.Status
		next, err := api.Update(ctx, want, options)
		switch {
		case apierrors.IsInvalid(err): // another Service has the internal number; address and event are still valid
			want.Spec.Ports = home.Spec.Ports
		case err != nil:
			return false, ignoreGone(err, "node ports", home.Name)
		default:
			want, changed = next, true
			want.Status = status
		}
	}
	if !equality.Semantic.DeepEqual(home.Status.LoadBalancer, want.Status.LoadBalancer) {
		if _, err := api.UpdateStatus(ctx, want, options); err != nil {
			return false, ignoreGone(err, "status", home.Name)
		}
		changed = true
	}
	return changed, nil
}

func ignoreGone(err error, what, name string) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("reflect: %s of Service %s at home: %w", what, name, err)
}

// opened describes where the ports are, for users.
func opened(ports []corev1.ServicePort, address string) string {
	var out []string
	for _, p := range ports {
		at := net.JoinHostPort(address, strconv.Itoa(int(p.NodePort)))
		if p.Protocol == corev1.ProtocolTCP {
			at = "http://" + at
		}
		out = append(out, fmt.Sprintf("port %d/%s at %s", p.Port, p.Protocol, at))
	}
	return strings.Join(out, ", ")
}

var _ mirror = (*lanServices)(nil)
