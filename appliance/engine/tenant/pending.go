package tenant

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// NoNode is what a pod of a virtual cluster is told.
const NoNode = "this virtual cluster has no node: its pods do not run on the host yet; run them in the host's own cluster"

// TellPending tells each pod that no node takes it, in its status and by an event, until ctx ends.
func TellPending(ctx context.Context, api *rest.Config) error {
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return fmt.Errorf("pending pods: %w", err)
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "rivulet"})
	list := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", ""))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: list, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.DeletionTimestamp != nil || told(pod) {
			return
		}
		pod = pod.DeepCopy()
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: NoNode, LastTransitionTime: metav1.Now(),
		})
		// Of one that is changed or gone meanwhile nothing is to be told.
		if _, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil {
			recorder.Event(pod, corev1.EventTypeWarning, "FailedScheduling", NoNode)
		}
	}}})
	informer.Run(ctx.Done())
	return nil
}

func told(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return true
		}
	}
	return false
}
