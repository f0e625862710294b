package why

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rivulet/offload"
	"rivulet/offload/policy"
)

// VClusters are the virtual clusters of this device, by the identity that their pods have here.
type VClusters map[string]offload.Consumer

// VClustersOf returns those among the consumers of a status.
func VClustersOf(consumers []offload.Consumer) VClusters {
	out := VClusters{}
	for _, c := range consumers {
		if c.VCluster {
			out[string(c.ID)] = c
		}
	}
	return out
}

// Origin is a pod of a virtual cluster as its user knows it.
type Origin struct {
	VCluster  string `json:"vcluster"`
	Owner     string `json:"owner"` // to read: anna (course db), or: virtual cluster test
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
}

// String is for a reader.
func (o Origin) String() string { return o.Owner + " " + o.Namespace + "/" + o.Pod }

// Argument is what `rivulet why` takes.
func (o Origin) Argument() string { return o.VCluster + "/" + o.Namespace + "/" + o.Pod }

// Of returns the origin of a pod on this cluster; nil for one that is of no virtual cluster of this device. Whose the pod
// is follows from its label, which admission enforces. The names inside are the virtual cluster's own claim: one that no
// object can have is replaced by the name here.
func (v VClusters) Of(p *corev1.Pod) *Origin {
	c, ok := v[p.Labels[policy.OriginLabel]]
	if !ok {
		return nil
	}
	o := &Origin{VCluster: c.Name, Owner: ownerOf(c), Namespace: p.Annotations[policy.HomeNamespaceAnnotation], Pod: p.Annotations[policy.HomePodAnnotation]}
	if len(validation.IsDNS1123Label(o.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(o.Pod)) > 0 {
		o.Namespace, o.Pod = p.Namespace, p.Name
	}
	return o
}

// ownerOf names a member of a course without the prefix that the course gives it, and the course with its namespace, but for
// default.
func ownerOf(c offload.Consumer) string {
	if c.Course == "" {
		return "virtual cluster " + c.Name
	}
	return strings.TrimPrefix(c.Name, path.Base(c.Course)+"-") + " (course " + strings.TrimPrefix(c.Course, metav1.NamespaceDefault+"/") + ")"
}
