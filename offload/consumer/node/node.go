package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	vk "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/fabric/panics"
	"rivulet/offload/consumer/homecache"
	"rivulet/offload/offer"
)

const (
	// coalesce is the least interval between two writes of one Node.
	coalesce = time.Second
	// heartbeat is the interval in which an unchanged Node is written, as by a kubelet.
	heartbeat = 5 * time.Minute
	// lease is the duration of the node's lease in seconds, as for the home node. It is renewed four times in that
	// time; each renewal is a write to the card. It shows only that this process lives; the Ready condition shows the
	// state of the target.
	lease = 120
	// quietly replaces heartbeat, and a quarter of lease, for a node that is Alone.
	quietly = time.Hour
)

// Node is the virtual node of one target.
type Node struct {
	id     Identity
	client kubernetes.Interface
	cache  *homecache.Cache
	log    *slog.Logger
	owner  Owner

	relabel chan struct{}

	mu      sync.Mutex
	current *corev1.Node
	offer   offer.Offer
	ready   bool
	// cordoned: the Node was cordoned at home.
	cordoned bool
}

// Owner is who has made a Node.
type Owner interface {
	// NodeChanged is called after Ready or Cordoned has changed.
	NodeChanged(name string)
}

// New makes a Node; Run starts it. All virtual nodes with the same cache share a watch.
func New(client kubernetes.Interface, cache *homecache.Cache, id Identity, owner Owner, log *slog.Logger) *Node {
	return &Node{id: id, client: client, cache: cache, owner: owner, relabel: make(chan struct{}, 1), log: log}
}

// Ready reports whether the last offer was that of a reachable target that can run pods.
func (n *Node) Ready() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

// Cordoned reports whether the Node is cordoned, by the cache.
func (n *Node) Cordoned() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cordoned
}

// Relabel writes the Node if Identity.Labels are others.
func (n *Node) Relabel() { changes.Poke(n.relabel) }

// Offer returns the last offer; the zero value before the first.
func (n *Node) Offer() offer.Offer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.offer
}

// Run maintains the Node and its lease until ctx or the channel of offers ends. The Node is made with the first offer
// that has an architecture, and remains at the end.
func (n *Node) Run(ctx context.Context, offers <-chan offer.Offer) error {
	first, was, err := n.first(ctx, offers)
	if err != nil {
		return err
	}
	n.take(first, was)

	beat, life := heartbeat, int32(lease)
	if n.id.Alone {
		beat, life = quietly, int32(4*quietly/time.Second)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	updates := make(chan *corev1.Node)
	controller, err := vk.NewNodeController(&provider{updates, end}, n.object(), n.client.CoreV1().Nodes(),
		vk.WithNodeEnableLeaseV1(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), life),
		vk.WithNodeStatusUpdateInterval(beat),
		vk.WithNodeStatusUpdateErrorHandler(n.recreate))
	if err != nil {
		return fmt.Errorf("offload: virtual node %s: %w", n.id.Name, err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	wg.Go(func() {
		defer end(nil) // the Node follows offers only
		defer panics.To(end)
		n.push(ctx, offers, updates)
	})
	wg.Go(func() {
		defer panics.To(end)
		n.guard(ctx, end)
	})
	if err := controller.Run(vklog.WithLogger(ctx, logger{n.log.With("node", n.id.Name)})); err != nil && ctx.Err() == nil {
		return fmt.Errorf("offload: virtual node %s: %w", n.id.Name, err)
	}
	return context.Cause(ctx)
}

// first waits for the first offer with an architecture, or adopts the node of an earlier run.
func (n *Node) first(ctx context.Context, offers <-chan offer.Offer) (offer.Offer, corev1.NodeStatus, error) {
	for {
		select {
		case <-ctx.Done():
			return offer.Offer{}, corev1.NodeStatus{}, ctx.Err()
		case o, ok := <-offers:
			if !ok {
				return o, corev1.NodeStatus{}, context.Canceled
			}
			existing, err := n.client.CoreV1().Nodes().Get(ctx, n.id.Name, metav1.GetOptions{})
			switch {
			case err == nil && Of(existing) != n.id.ID:
				return o, corev1.NodeStatus{}, fmt.Errorf("offload: %s is another node of this cluster by now; for another name of the virtual one restart rivulet", n.id.Name)
			case err == nil:
				return known(o, fromNode(existing)), existing.Status, nil
			case !apierrors.IsNotFound(err):
				return o, corev1.NodeStatus{}, fmt.Errorf("offload: virtual node %s: %w", n.id.Name, err)
			case o.Architecture != "":
				return o, corev1.NodeStatus{}, nil
			}
		}
	}
}

// known completes an offer of a silent target from the one before.
func known(o, before offer.Offer) offer.Offer {
	if o.Architecture != "" {
		return o
	}
	before.Ready, before.Reason, before.Heard = o.Ready, o.Reason, o.Heard
	return before
}

// take makes the next Node from the offer and reports whether it differs.
func (n *Node) take(o offer.Offer, was corev1.NodeStatus) bool {
	n.mu.Lock()
	if n.current != nil {
		o, was = known(o, n.offer), n.current.Status
	}
	next := Object(n.id, o, was, metav1.Now())
	differs := n.current == nil || !same(n.current, next)
	turned := n.ready != o.Ready
	n.offer, n.ready, n.current = o, o.Ready, next
	n.mu.Unlock()
	if turned {
		if o.Ready {
			n.log.Info("virtual node ready", "node", n.id.Name)
		} else {
			n.log.Warn("virtual node not ready", "node", n.id.Name, "reason", o.Reason)
		}
		n.owner.NodeChanged(n.id.Name)
	}
	return differs
}

// same compares two Nodes without heartbeats.
func same(a, b *corev1.Node) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, n := range []*corev1.Node{a, b} {
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return equality.Semantic.DeepEqual(a, b)
}

func (n *Node) object() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.current.DeepCopy()
}

// push passes changes on: the first at once, further ones at most once per coalesce.
func (n *Node) push(ctx context.Context, offers <-chan offer.Offer, updates chan<- *corev1.Node) {
	var due <-chan time.Time
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case o, ok := <-offers:
			if !ok {
				return
			}
			if n.take(o, corev1.NodeStatus{}) && due == nil {
				due = time.After(coalesce - time.Since(last))
			}
		case <-n.relabel:
			if n.take(n.Offer(), corev1.NodeStatus{}) && due == nil {
				due = time.After(coalesce - time.Since(last))
			}
		case <-due:
			due, last = nil, time.Now()
			select {
			case updates <- n.object():
			case <-ctx.Done():
				return
			}
		}
	}
}

// recreate makes the Node again after it was deleted.
func (n *Node) recreate(ctx context.Context, err error) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	n.log.Warn("virtual node was deleted; making it again, as its cluster is still a peer", "node", n.id.Name)
	_, err = n.client.CoreV1().Nodes().Create(ctx, n.object(), metav1.CreateOptions{})
	return err
}

// Remove deletes the Node and its lease; Kubernetes then deletes the pods bound to it.
func Remove(ctx context.Context, client kubernetes.Interface, name string) error {
	if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("offload: remove virtual node %s: %w", name, err)
	}
	err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("offload: remove lease of %s: %w", name, err)
	}
	return nil
}

// provider is the source of virtual-kubelet's NodeController.
type provider struct {
	updates <-chan *corev1.Node
	end     context.CancelCauseFunc // of Node.Run
}

// Ping always succeeds, since the lease shows only that this process lives.
func (*provider) Ping(context.Context) error { return nil }

func (p *provider) NotifyNodeStatus(ctx context.Context, notify func(*corev1.Node)) {
	go func() {
		defer panics.To(p.end)
		for {
			select {
			case <-ctx.Done():
				return
			case node := <-p.updates:
				notify(node)
			}
		}
	}()
}
