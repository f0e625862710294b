// Package admission decides which pods get a network on this node: this cluster's own at once, those of other clusters
// when they are isolated and can use the Services of their home. It reads namespaces and pods from the API server and
// writes nothing. Restart: it has no state. Failure: no pod of another cluster starts.
package admission

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/homeaddr"
	"rivulet/offload/nodeagent/isolation"
	"rivulet/offload/nodeagent/podnet"
	"rivulet/offload/policy"
)

// isolated bounds how long a pod of another cluster waits for its isolation, seen how long the read of a namespace is
// retried while the API server does not answer.
const isolated, seen = 10 * time.Second, 15 * time.Second

// Admission decides. All fields must be set.
type Admission struct {
	Client    func() kubernetes.Interface // nil before the API server is up
	Held      *isolation.Held
	HomeAddrs *homeaddr.Pods
	Kubelet   string // the kubelet's folder
}

// Admit admits this cluster's own pods at once, and pods of other clusters when they are isolated and can use the
// Services of their home. It reads the namespace from the API server each time: a cache could lag, and a pod of this
// cluster must not depend on any part of offloading.
func (a Admission) Admit(ctx context.Context, pod podnet.Pod) error {
	ns, err := liveRead(ctx, a.Client, func(c kubernetes.Interface) (*corev1.Namespace, error) {
		return c.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
	})
	if err != nil {
		return fmt.Errorf("namespace %s of the pod: %w", pod.Namespace, err)
	}
	consumer, tenant := ns.Labels[policy.OriginLabel]
	if !tenant {
		return nil
	}
	ctx, stop := context.WithTimeout(ctx, isolated)
	defer stop()
	if err := a.Held.Hold(ctx, pod, peer.ID(consumer)); err != nil {
		return err
	}
	return a.findsHome(ctx, pod, peer.ID(consumer))
}

// findsHome admits a pod that was made for home's addresses when they are usable there.
func (a Admission) findsHome(ctx context.Context, pod podnet.Pod, consumer peer.ID) error {
	object, err := liveRead(ctx, a.Client, func(c kubernetes.Interface) (*corev1.Pod, error) {
		return c.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	})
	if err != nil {
		return fmt.Errorf("pod %s in %s: %w", pod.Name, pod.Namespace, err)
	}
	made, translated := object.Annotations[policy.HomeAddressesAnnotation]
	if !translated {
		return nil // made by an older version, of its home or of this cluster
	}
	own, err := a.HomeAddrs.Hold(ctx, pod, consumer, made == policy.HomeAddressesOfPods)
	if err != nil || made != policy.HomeAddressesOfPods {
		return err
	}
	return homeaddr.Write(a.Kubelet, object, own)
}

// liveRead waits for the API server, which may be starting.
func liveRead[T any](ctx context.Context, client func() kubernetes.Interface, get func(kubernetes.Interface) (T, error)) (found T, err error) {
	ctx, stop := context.WithTimeout(ctx, seen)
	defer stop()
	for {
		err = fmt.Errorf("the API server is not ready; see rivulet status")
		if c := client(); c != nil {
			if found, err = get(c); err == nil || apierrors.IsNotFound(err) {
				return found, err
			}
		}
		if !changes.Wait(ctx, 100*time.Millisecond) {
			return found, err
		}
	}
}
