package tenancy

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"rivulet/fabric/peer"
	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/watch"
)

// Ports are those of package offer.
type Ports = offer.Ports

// LAN is what virtual clusters may open on the LAN. All fields must be set.
type LAN struct {
	Ports func() Ports
	// Address is this device's address on the LAN; not valid without one.
	Address func() netip.Addr
	// Changed reports changes of both, like that of peer.Following.
	Changed func() (<-chan struct{}, func())
}

// PortsEach is how many ports of the LAN one virtual cluster may have.
const PortsEach = 10

// nodePorts is their name in a quota.
const nodePorts = "services.nodeports"

// portGrant is the decision for one Service: a node port for each of its ports, or the reason for a refusal.
type portGrant struct {
	ports  []int32
	reason string
}

// grantPorts decides for the Services of virtual clusters that need ports. A Service keeps its ports; the oldest
// Service comes first. own are the ports of one virtual cluster; none: all are. busy are ports in use elsewhere. It is pure.
func grantPorts(services []*corev1.Service, owner func(namespace string) peer.ID, all Ports, own func(peer.ID) Ports, busy map[int32]bool) map[*corev1.Service]portGrant {
	services = slices.SortedFunc(slices.Values(services), func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	out, used := map[*corev1.Service]portGrant{}, map[peer.ID]int{}
	taken := map[int32]bool{}
	var wanting []*corev1.Service
	of := func(id peer.ID) Ports {
		if mine := own(id); mine.Last != 0 {
			return all.And(mine)
		}
		return all
	}
	for _, s := range services {
		id := owner(s.Namespace)
		within := of(id)
		switch {
		case all.Last != 0 && within.Last == 0:
			mine := own(id)
			out[s] = portGrant{reason: fmt.Sprintf("its ports %d-%d are not within the %d-%d that this device opens to virtual clusters; change spec.ports, or vclusters.ports of the configuration", mine.First, mine.Last, all.First, all.Last)}
		case within.Last == 0:
			out[s] = portGrant{reason: "the owner of this device opens no ports of the LAN to virtual clusters; the owner does so by a range in vclusters.ports of the configuration"}
		case slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Protocol != corev1.ProtocolTCP && p.Protocol != corev1.ProtocolUDP
		}):
			out[s] = portGrant{reason: "only ports of TCP and UDP are opened on the LAN; leave the others out"}
		case used[id]+len(s.Spec.Ports) > PortsEach:
			out[s] = portGrant{reason: fmt.Sprintf("a virtual cluster has %d ports of the LAN at most, and %d are open; delete a Service that has some", PortsEach, used[id])}
		default:
			used[id] += len(s.Spec.Ports)
			g := portGrant{ports: make([]int32, len(s.Spec.Ports))}
			for i, p := range s.Spec.Ports {
				if s.Spec.Type == corev1.ServiceTypeNodePort && within.Has(p.NodePort) && !taken[p.NodePort] {
					g.ports[i], taken[p.NodePort] = p.NodePort, true
				}
			}
			out[s], wanting = g, append(wanting, s)
		}
	}
	for _, s := range wanting {
		g, within := out[s], of(owner(s.Namespace))
		for i, p := range s.Spec.Ports {
			if g.ports[i] == 0 {
				g.ports[i] = freePort(within, fmt.Sprintf("%s/%s/%s/%s", s.Namespace, s.Name, p.Name, p.Protocol), func(port int32) bool { return taken[port] || busy[port] })
				taken[g.ports[i]] = true
			}
		}
		if slices.Contains(g.ports, 0) {
			for _, port := range g.ports {
				delete(taken, port)
			}
			out[s] = portGrant{reason: fmt.Sprintf("all ports from %d to %d are in use; the owner of this device can make vclusters.ports wider, or another Service be deleted", within.First, within.Last)}
		}
	}
	return out
}

// freePort is a free port, 0 without one; the same one for the same name if possible.
func freePort(within Ports, name string, taken func(int32) bool) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	size := int32(within.Last) - int32(within.First) + 1
	start := int32(h.Sum32() % uint32(size))
	for i := range size {
		if port := int32(within.First) + (start+i)%size; !taken(port) {
			return port
		}
	}
	return 0
}

// granted applies the decision to a Service. address is the device's on the LAN.
func granted(s *corev1.Service, g portGrant, address netip.Addr) *corev1.Service {
	s = s.DeepCopy()
	s.Spec.Type = corev1.ServiceTypeClusterIP
	if g.reason == "" {
		s.Spec.Type = corev1.ServiceTypeNodePort
	}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
		if g.reason == "" {
			s.Spec.Ports[i].NodePort = g.ports[i]
		}
	}
	key, value := policy.LANRefusedAnnotation, g.reason
	switch {
	case g.reason == "" && address.IsValid():
		key, value = policy.LANAddressAnnotation, address.String()
	case g.reason == "":
		value = "the device has no address on a LAN; it is opened when there is one"
	}
	delete(s.Annotations, policy.LANAddressAnnotation)
	delete(s.Annotations, policy.LANRefusedAnnotation)
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value)
	return s
}

// keepPorts opens and closes ports of the LAN for Services of virtual clusters, until ctx ends. The Services are the
// only record.
func (t *Tenancy) keepPorts(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(t.client, 0,
		watch.Labelled(policy.LANLabel))
	defer factory.Shutdown()
	services := factory.Core().V1().Services()
	changed, stop := t.ports.Changed()
	defer stop()
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), t.namespaces.Informer()} {
		// It fails only on a stopped informer.
		_, _ = informer.AddEventHandler(watch.Changes(t.ports.Notify))
	}
	t.ports.Follow(ctx, t.LAN.Changed)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), services.Informer().HasSynced, t.namespaces.Informer().HasSynced) {
		return
	}
	busy := map[int32]bool{} // until the next hour
	for {
		wait := time.Hour
		all, _ := services.Lister().List(labels.Everything()) // a cache cannot fail
		all = slices.DeleteFunc(all, func(s *corev1.Service) bool {
			id, tenant := t.consumerOf(s.Namespace)
			return !tenant || !t.isHosted(id) || !strings.HasPrefix(s.Name, policy.LANServicePrefix) || s.DeletionTimestamp != nil
		})
		owner := func(namespace string) peer.ID { id, _ := t.consumerOf(namespace); return id }
		own := func(id peer.ID) (none Ports) {
			if hosted := t.hosted.Load(); hosted != nil {
				return (*hosted)[id].Ports
			}
			return none
		}
		for s, g := range grantPorts(all, owner, t.LAN.Ports(), own, busy) {
			want := granted(s, g, t.LAN.Address())
			if equality.Semantic.DeepEqual(want, s) {
				continue
			}
			_, err := t.client.CoreV1().Services(s.Namespace).Update(ctx, want, metav1.UpdateOptions{FieldManager: policy.FieldManager})
			switch {
			case err == nil || ctx.Err() != nil, apierrors.IsNotFound(err):
			case apierrors.IsConflict(err): // the cache lags
				wait = min(wait, portsAgain)
			case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "already allocated"):
				for i, port := range g.ports {
					if s.Spec.Ports[i].NodePort != port {
						busy[port] = true
					}
				}
				wait = min(wait, portsAgain)
			default:
				t.Log.Warn("a port of the LAN is not opened or closed", "service", s.Namespace+"/"+s.Name, "err", err, "retry", portsAgain)
				wait = min(wait, portsAgain)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(wait):
			if wait == time.Hour {
				clear(busy)
			}
		}
	}
}

// portsAgain is the pause before a retry.
const portsAgain = time.Second

func (t *Tenancy) isHosted(id peer.ID) bool {
	hosted := t.hosted.Load()
	if hosted == nil {
		return false
	}
	_, ok := (*hosted)[id]
	return ok
}
