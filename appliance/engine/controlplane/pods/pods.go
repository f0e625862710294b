// Package pods runs the pods of a virtual cluster on its host. It is part of the virtual cluster's process: a consumer
// of package offload with that process's API server as home and the host as the only target, and the binder, which
// replaces the scheduler.
//
//	pod ──binder──▶ virtual node "host" ──consumer──▶ socket of the host ──▶ twin namespace, the host's scheduler
//
// It reads pods, nodes, claims and namespaces of its API server. It alone writes there what a consumer writes, the
// binding of pods, their condition PodScheduled while no node takes them, the chosen node of claims, the endpoints of
// Service kubernetes, and Service kube-dns and StorageClass Class if there is none. Restart: all state is in the objects; pods continue
// at the host, and their changes are read when the process runs again. Failure as the user sees it: the node is not
// Ready, or the pod's condition and event have the reason.
package pods

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rivulet/appliance/engine/controlplane"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer"
	"rivulet/offload/consumer/stream"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
	"rivulet/offload/target"
	peertarget "rivulet/offload/target/peer"
)

const (
	// Kind is the target kind of the host.
	Kind target.Kind = "host"
	// NodeName is the name of the virtual node, unless the host has nodes of several platforms.
	NodeName = "host"
	// Class is the StorageClass of a new virtual cluster.
	Class = "local-path"
)

const (
	// kubeletPort is the port of the virtual node's kubelet API; it is fixed, so that the node's object stays valid.
	kubeletPort = 10250
	// openLimit is how long a start may wait for that port.
	openLimit = time.Second
)

// loopback is the address of that API without an address of the host.
var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// Neighbours evaluates rules between pods. The binder catches its panics.
type Neighbours interface {
	// Beside returns the evaluator for pods that come to others, which have their nodes in spec.nodeName.
	Beside(ctx context.Context, namespaces []corev1.Namespace, others []*corev1.Pod, nodes []*corev1.Node) (Evaluator, error)
}

// Evaluator evaluates rules for pods that come to others.
type Evaluator interface {
	// Refuse returns, for each node on which a pod may not run beside the others, why.
	Refuse(ctx context.Context, p *corev1.Pod) (map[string]string, error)
}

// Run runs pods until ctx ends; api has all rights at the process's API server. It calls p.Open once the pods of an
// earlier process can be used too, or after openLimit.
func Run(ctx context.Context, api *rest.Config, p controlplane.Plane, rules Neighbours, log *slog.Logger) error {
	open := sync.OnceFunc(p.Open)
	defer open() // after any failure the rest can be used
	pods, err := netip.ParsePrefix(p.PodCIDR)
	if err != nil {
		return fmt.Errorf("pods: the addresses of the host's pods: %w", err)
	}
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	again := func(ctx context.Context) (time.Time, error) { return due(ctx, client) }
	p.Due.Store(&again)
	authority := filepath.Join(controlplane.TLS, "kubelet-ca.crt")
	c, err := consumer.New(consumer.Config{
		Home: api, ID: p.ID, Host: p.Name, NodeIP: cmp.Or(p.Advertise.Addr(), loopback), NodePort: kubeletPort, Everywhere: true, Words: words, Log: log,
		Authority: stream.Authority{ClientCA: authority, ServerCA: authority, ServerKey: filepath.Join(controlplane.TLS, "kubelet-ca.key")},
	})
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", controlplane.Host)
	}
	others := &others{pods: pods, dial: dial, home: client, targets: c, log: log, names: map[peer.ID]string{}}
	others.follow(ctx) // before slices with addresses of pods there are reflected
	c.SetTargets(Kind, []target.Spec{spec(pods, p.Advertise, dial, others)}, true)
	if !p.Advertise.Addr().IsLoopback() { // a slice may not have such an address
		if err := reportAddresses(ctx, client, p.Advertise, p.DNS); err != nil { // pods find the API server through the host
			log.Warn("programs do not find the endpoints of Services kubernetes and kube-dns", "err", err)
		}
	}
	if p.First {
		if err := addClass(ctx, client); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = c.Run(ctx) }) // ends with ctx
	if nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1}); err == nil && len(nodes.Items) > 0 {
		_ = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, openLimit, true, func(context.Context) (bool, error) { return len(c.VirtualNodes()) > 0, nil })
	}
	open()
	return bind(ctx, client, rules)
}

// Spec is the host as a target. Its pods have the same addresses at both ends, and find the virtual cluster's API
// server at api; dial opens a new connection for one caller.
func Spec(pods netip.Prefix, api netip.AddrPort, dial dialer) target.Spec {
	return spec(pods, api, dial, new(others))
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// spec is Spec; the host reaches pods at others, too.
func spec(pods netip.Prefix, api netip.AddrPort, dial dialer, others *others) target.Spec {
	link := peer.Link{ID: NodeName, Name: NodeName, PeerCIDR: pods, PeerMappedCIDR: pods, LocalMappedCIDR: pods, State: peer.Connected}
	return target.Spec{
		ID: NodeName, Name: NodeName, Short: NodeName, Kind: Kind, Control: api,
		New: func(name string, log *slog.Logger) (target.Target, error) {
			t, err := peertarget.New(peertarget.Config{
				Name: name, Link: link, Links: func() []peer.Link { return []peer.Link{link} }, LinksChanged: others.changed.Changed, PodCIDR: pods, Dial: dial,
				HTTP: &http.Client{Transport: &http.Transport{DialContext: dial}}, BaseURL: "http://host", Log: log,
			})
			if err != nil {
				return nil, err
			}
			return host{t, api.Addr(), others}, nil
		},
	}
}

// host is the target. It translates Services only: pods have the same addresses at both ends.
type host struct {
	*peertarget.Target
	api    netip.Addr
	others *others
}

// HomeAddresses is what the host translates for new pods.
func (h host) HomeAddresses() string {
	if h.Target.HomeAddresses() == "" {
		return ""
	}
	return policy.HomeAddressesOfServices
}

// Away is the same as a peer's; the API server is at the host already.
func (h host) Away(a netip.Addr) (netip.Addr, bool) {
	if a == h.api || h.others.has(a) {
		return a, true
	}
	return h.Target.Away(a)
}

// addClass creates the default StorageClass.
func addClass(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: Class, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: volume.Provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowVolumeExpansion: ptr.To(true), // the host's class decides, with an event
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("pods: StorageClass %s: %w", Class, err)
	}
	return nil
}
