package objects

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rivulet/appliance/vcluster"
)

// Names in the API.
const (
	Kind = "VirtualCluster"
	// Finalizer delays the deletion of the object until the virtual cluster is deleted.
	Finalizer = "rivulet.dev/virtual-cluster"
	// Ready is the condition that it can be used, asleep or not.
	Ready = "Ready"
	// KubeconfigKey is the key in the Secret, the same as in Cluster API and Flux.
	KubeconfigKey = "value"
)

var (
	groupVersion = schema.GroupVersion{Group: "rivulet.dev", Version: "v1alpha1"}
	// Resource is the API resource of the objects.
	Resource = groupVersion.WithResource("virtualclusters")
)

// VirtualCluster is the object.
type VirtualCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              Spec   `json:"spec,omitempty"`
	Status            Status `json:"status,omitempty"`
}

// Spec is the desired state.
type Spec struct {
	Sleep string `json:"sleep,omitempty"`
	// WatchKeepsAwake is vcluster.Spec.WatchKeepsAwake.
	WatchKeepsAwake bool              `json:"watchKeepsAwake,omitempty"`
	Memory          resource.Quantity `json:"memory,omitempty"`
	// Datastore is vcluster.Spec.Datastore.
	Datastore resource.Quantity   `json:"datastore,omitempty"`
	Paused    bool                `json:"paused,omitempty"`
	Quota     corev1.ResourceList `json:"quota,omitempty"`
	// Guarantee is vcluster.Spec.Guarantee.
	Guarantee corev1.ResourceList `json:"guarantee,omitempty"`
	Groups    []vcluster.Group    `json:"groups,omitempty"`
	// Ports is vcluster.Spec.Ports.
	Ports string `json:"ports,omitempty"`
	// Targets is vcluster.Spec.Targets.
	Targets []string `json:"targets,omitempty"`
}

// Status is the observed state. It has no figures that change constantly: each change would be a write to the SD card.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	State              string             `json:"state,omitempty"`
	Reason             string             `json:"reason,omitempty"`
	Address            string             `json:"address,omitempty"`
	KubeconfigSecret   string             `json:"kubeconfigSecret,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (o *VirtualCluster) key() string { return o.Namespace + "/" + o.Name }

func (o *VirtualCluster) owner() vcluster.Owner {
	return vcluster.Owner{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID)}
}

// want converts the spec to that of the Manager.
func (o *VirtualCluster) want() (vcluster.Spec, error) {
	s := vcluster.Spec{Name: o.Name, WatchKeepsAwake: o.Spec.WatchKeepsAwake, Memory: o.Spec.Memory.Value(), Datastore: o.Spec.Datastore.Value(), Quota: o.Spec.Quota, Guarantee: o.Spec.Guarantee, Groups: o.Spec.Groups, Ports: o.Spec.Ports, Targets: o.Spec.Targets}
	var err error
	if s.Sleep, err = time.ParseDuration(o.Spec.Sleep); err != nil {
		return s, fmt.Errorf("spec.sleep %.40q is no time; say it like 30m, or 0 for never", o.Spec.Sleep)
	}
	return s, s.Check()
}

func (o *VirtualCluster) secretName() string { return o.Name + "-kubeconfig" }

// fresh returns the new status. It is equal to the old one, times included, if nothing else changed.
func fresh(o *VirtualCluster, state, reason, message, address string, ready bool) Status {
	s := Status{ObservedGeneration: o.Generation, State: state, Reason: message, Address: address}
	if address != "" {
		s.KubeconfigSecret = o.secretName()
	}
	c := metav1.Condition{Type: Ready, Status: metav1.ConditionFalse, ObservedGeneration: o.Generation, Reason: reason,
		Message: message, LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}
	if ready {
		c.Status = metav1.ConditionTrue
	}
	for _, old := range o.Status.Conditions {
		if old.Type == Ready && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	s.Conditions = []metav1.Condition{c}
	return s
}

func fromAPI(u *unstructured.Unstructured) (*VirtualCluster, error) {
	o := &VirtualCluster{}
	return o, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o)
}

func toAPI(o *VirtualCluster) (*unstructured.Unstructured, error) {
	o.TypeMeta = metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: Kind}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	return &unstructured.Unstructured{Object: m}, err
}

func reference(o *VirtualCluster) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: groupVersion.String(), Kind: Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
}

// camel converts a state to the reason of a condition.
func camel(s vcluster.State) string { return strings.ReplaceAll(string(s), " ", "") }
