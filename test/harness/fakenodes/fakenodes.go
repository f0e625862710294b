// Package fakenodes keeps nodes that are none: Node objects that stay Ready, and pods
// that are said to run as soon as they are bound to them, without any container. Tests
// and benchmarks use it where the machine below would be what is measured.
//
// It reads the pods of the cluster and alone writes its Nodes and the status of pods
// bound to them; pods that were deleted it takes off the API, as a kubelet does. What
// fails is tried again until its context ends. The Nodes stay behind.
package fakenodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"rivulet/offload/watch"
)

// EndsLabel on a pod, or an annotation of that name, has it end with this exit code,
// one digit, at once.
const EndsLabel = "test.rivulet.dev/exit-code"

// WaitsLabel on a pod, as long as it is there, has its node say nothing of it.
const WaitsLabel = "test.rivulet.dev/waits"

const (
	heartbeat = 10 * time.Second
	workers   = 16
)

// Node is one to keep.
type Node struct {
	Name, Architecture string
	Labels             map[string]string
	Taints             []corev1.Taint
	Room               corev1.ResourceList
	Pods               netip.Prefix // where its pods' addresses are from
	Kubelet            int32        // port of its kubelet's API on the loopback; 0: it has none
}

// Kubelets keeps nodes of one cluster.
type Kubelets struct {
	client kubernetes.Interface
	nodes  map[string]Node
	pods   cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string]

	mu    sync.Mutex
	taken map[netip.Addr]string // by the pod's key
	given map[string]netip.Addr
}

// Register creates the nodes; Run keeps them.
func Register(ctx context.Context, client kubernetes.Interface, nodes ...Node) (*Kubelets, error) {
	k := &Kubelets{client: client, nodes: map[string]Node{}, taken: map[netip.Addr]string{}, given: map[string]netip.Addr{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, time.Second))}
	for _, n := range nodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, n.object(), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("fakenodes: node %s: %w", n.Name, err)
		}
		k.nodes[n.Name] = n
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "spec.nodeName!="
	}))
	k.pods = factory.Core().V1().Pods().Informer()
	enqueue := func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok {
			if _, ours := k.nodes[p.Spec.NodeName]; ours {
				k.queue.Add(cache.MetaObjectToName(p).String())
			}
		}
	}
	// It fails only on an informer that has ended.
	_, _ = k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				k.free(key)
			}
		}})
	return k, nil
}

// work calls sync for the keys of a queue until that is shut down, again after errors.
func work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], workers int, sync func(context.Context, string) error) {
	watch.Work(ctx, queue, workers, func(key string) {
		if sync(ctx, key) == nil {
			queue.Forget(key)
		} else if ctx.Err() == nil {
			queue.AddRateLimited(key)
		}
	})
}

// Run blocks until ctx ends.
func (k *Kubelets) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	defer k.queue.ShutDown()
	all.Go(func() { k.pods.RunWithContext(ctx) })
	all.Go(func() { work(ctx, k.queue, workers, k.sync) })
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		for name := range k.nodes {
			k.beat(ctx, name)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beat says that a node is Ready; the next one tries again.
func (k *Kubelets) beat(ctx context.Context, name string) {
	n, err := k.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			c.LastHeartbeatTime, c.Status = metav1.Now(), corev1.ConditionTrue
		}
	}
	_, _ = k.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
}

// sync does for one pod what a kubelet would.
func (k *Kubelets) sync(ctx context.Context, key string) error {
	obj, there, _ := k.pods.GetStore().GetByKey(key)
	if !there {
		return nil
	}
	p := obj.(*corev1.Pod)
	pods := k.client.CoreV1().Pods(p.Namespace)
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	switch {
	case p.DeletionTimestamp != nil:
		if !ended && slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) { // its Job goes by how it ended
			p = p.DeepCopy()
			p.Status.Phase = corev1.PodFailed
			if _, err := pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	case ended, p.Labels[WaitsLabel] != "", p.Status.Phase == corev1.PodRunning && ends(p) == "":
		return nil
	}
	p = p.DeepCopy()
	if err := k.address(key, p); err != nil {
		return err
	}
	runs(p)
	_, err := pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// address gives the pod one of its node's that no other pod has.
func (k *Kubelets) address(key string, p *corev1.Pod) error {
	if p.Status.PodIP != "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	ip, has := k.given[key]
	prefix := k.nodes[p.Spec.NodeName].Pods
	if !has || !prefix.Contains(ip) {
		for ip = prefix.Addr().Next(); k.taken[ip] != ""; ip = ip.Next() {
		}
		if !prefix.Contains(ip) {
			return fmt.Errorf("fakenodes: every address of %s is taken", prefix)
		}
		k.taken[ip], k.given[key] = key, ip
	}
	p.Status.PodIP = ip.String()
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	return nil
}

func (k *Kubelets) free(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.taken, k.given[key])
	delete(k.given, key)
}

// object is the Node as it is created.
func (n Node) object() *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelArchStable: n.Architecture, corev1.LabelOSStable: "linux"}
	for key, value := range n.Labels {
		labels[key] = value
	}
	now := metav1.Now()
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: n.Taints},
		Status: corev1.NodeStatus{
			Capacity: n.Room, Allocatable: n.Room,
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: n.Kubelet}},
			NodeInfo:        corev1.NodeSystemInfo{Architecture: n.Architecture, OperatingSystem: "linux", KubeletVersion: "v1.35.0"},
		}}
}

func ends(p *corev1.Pod) string {
	if code := p.Labels[EndsLabel]; code != "" {
		return code
	}
	return p.Annotations[EndsLabel]
}

// runs fills in the status of a pod that runs, or has ended if its label says so.
func runs(p *corev1.Pod) {
	now := metav1.Now()
	code := ends(p)
	p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &now
	ready := corev1.ConditionTrue
	if code != "" {
		ready, p.Status.Phase = corev1.ConditionFalse, corev1.PodFailed
		if code == "0" {
			p.Status.Phase = corev1.PodSucceeded
		}
	}
	p.Status.ContainerStatuses = nil
	for _, c := range p.Spec.Containers {
		st := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ContainerID: "fake://" + string(p.UID) + c.Name, Ready: code == ""}
		if code == "" {
			st.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
		} else {
			st.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(code[0] - '0'), StartedAt: now, FinishedAt: now}
		}
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, st)
	}
	scheduled := p.Status.Conditions[:0]
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			scheduled = append(scheduled, c)
		}
	}
	p.Status.Conditions = scheduled
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		status := ready
		if t == corev1.PodInitialized {
			status = corev1.ConditionTrue
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: status, LastTransitionTime: now})
	}
}
