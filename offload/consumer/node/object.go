package node

import (
	"maps"
	"net/netip"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/offer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Identity is the part of a virtual node that does not depend on offers.
type Identity struct {
	Name string
	ID   string // the target's
	// Target is the target's name, which its first node has.
	Target string
	IP     netip.Addr // of the home node on which the kubelet API is served
	Port   uint16     // of that API
	Kind   target.Kind
	// Labels are home's own for it, which may change; nil is none.
	Labels *atomic.Pointer[map[string]string]
	// After: the scheduler prefers nodes without it.
	After bool
	// Alone: home has no nodes of its own. No taint keeps pods off it, and no controller depends on its lease, which is
	// written once per quietly.
	Alone bool
}

// idPrefix begins the provider ID of virtual nodes; the target's ID follows.
const idPrefix = "rivulet://"

// Of returns the ID of the target whose virtual node n is, "" if it is none. Both marks are written by this cluster's
// server alone, which the API server enforces (policy rivulet-node-marks): a kubelet's Node has neither.
func Of(n *corev1.Node) string {
	if id := n.Labels[policy.VirtualNodeLabel]; n.Spec.ProviderID == idPrefix+id {
		return id
	}
	return ""
}

// Reasons of the Ready condition.
const (
	reasonReady    = "OfferReady"
	reasonNotReady = "OfferNotReady"
)

// Object makes the Node. It is pure; the times of transitions are kept from was, the previous status.
func Object(id Identity, o offer.Offer, was corev1.NodeStatus, now metav1.Time) *corev1.Node {
	labels := map[string]string{}
	for key, value := range o.Labels { // from the target, not trusted
		if offer.Copied(key) {
			labels[key] = value
		}
	}
	if id.Labels != nil {
		maps.Copy(labels, *id.Labels.Load())
	}
	maps.Copy(labels, map[string]string{
		policy.VirtualNodeLabel:          id.ID,
		policy.KindLabel:                 string(id.Kind),
		policy.TargetLabel:               id.Target,
		corev1.LabelHostname:             id.Name,
		corev1.LabelArchStable:           o.Architecture,
		corev1.LabelOSStable:             o.OS,
		"type":                           "virtual-kubelet",
		"kubernetes.io/role":             "virtual",
		corev1.LabelNodeExcludeBalancers: "true",
	})
	if id.After {
		labels[policy.After] = "true"
	}
	var taints []corev1.Taint
	if !id.Alone {
		taints = policy.NodeTaints(id.After)
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id.Name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: idPrefix + id.ID, Taints: taints},
		Status: corev1.NodeStatus{
			Capacity:    o.Allocatable.DeepCopy(),
			Allocatable: o.Allocatable.DeepCopy(),
			Conditions:  conditions(o, was, now),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: id.IP.String()},
				{Type: corev1.NodeHostName, Address: id.Name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(id.Port)}},
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: o.Architecture, OperatingSystem: o.OS, KubeletVersion: o.KubeVersion,
				KernelVersion: o.KernelVersion, OSImage: o.OSImage, ContainerRuntimeVersion: o.Runtime,
				SystemUUID: id.ID, MachineID: id.ID,
			},
		},
	}
}

func conditions(o offer.Offer, was corev1.NodeStatus, now metav1.Time) []corev1.NodeCondition {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: reasonReady, Message: "the provider answers and has room to lend"}
	if !o.Ready {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, reasonNotReady, o.Reason
	}
	healthy := func(t corev1.NodeConditionType, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: "pressure at the provider shows in what it offers"}
	}
	out := []corev1.NodeCondition{
		ready,
		healthy(corev1.NodeMemoryPressure, "KubeletHasSufficientMemory"),
		healthy(corev1.NodeDiskPressure, "KubeletHasNoDiskPressure"),
		healthy(corev1.NodePIDPressure, "KubeletHasSufficientPID"),
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "FabricManaged", Message: "pods are reached through the tunnel"},
	}
	for i := range out {
		out[i].LastHeartbeatTime, out[i].LastTransitionTime = now, now
		for _, c := range was.Conditions {
			if c.Type == out[i].Type && c.Status == out[i].Status && !c.LastTransitionTime.IsZero() {
				out[i].LastTransitionTime = c.LastTransitionTime
			}
		}
	}
	return out
}

// fromNode reconstructs the last offer from a node of an earlier run, for a target without an offer in this one.
func fromNode(n *corev1.Node) offer.Offer {
	return offer.Offer{
		Labels:      n.Labels, // Object takes only those that offers may have
		Allocatable: n.Status.Allocatable, Architecture: n.Status.NodeInfo.Architecture, OS: n.Status.NodeInfo.OperatingSystem,
		KubeVersion: n.Status.NodeInfo.KubeletVersion, KernelVersion: n.Status.NodeInfo.KernelVersion,
		OSImage: n.Status.NodeInfo.OSImage, Runtime: n.Status.NodeInfo.ContainerRuntimeVersion,
	}
}
