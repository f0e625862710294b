package peerobjects

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rivulet/fabric/peer"
)

// Names in the API.
const (
	Kind = "Peer"
	// IDLabel has the ID of the object's cluster.
	IDLabel = "rivulet.dev/peer-id"
	// Finalizer delays the deletion of the object until the peering has ended.
	Finalizer = "rivulet.dev/unpeer"
	// ForceAnnotation set to "true" ends it even if the peer cannot be notified.
	ForceAnnotation = "rivulet.dev/force"
	// Ready is the condition that follows the tunnel.
	Ready = "Ready"
)

var (
	groupVersion = schema.GroupVersion{Group: "rivulet.dev", Version: "v1alpha1"}
	// Resource is the API resource of the objects.
	Resource = groupVersion.WithResource("peers")
)

// Peer is the object.
type Peer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              Spec   `json:"spec,omitempty"`
	Status            Status `json:"status,omitempty"`
}

// Spec is the desired state; nil means no change.
type Spec struct {
	// Address and ID identify the cluster to peer with; see wish.
	Address string `json:"address,omitempty"`
	ID      string `json:"id,omitempty"`

	Consume *bool `json:"consume,omitempty"`
	Provide *bool `json:"provide,omitempty"`
	Price   *int  `json:"price,omitempty"`
	// Labels are all labels of the peer.
	Labels map[string]string `json:"labels,omitempty"`
}

// settings are the changes that make the record what the spec says.
func (s Spec) settings(r peer.Record) (out peer.Settings) {
	if s.Consume != nil && *s.Consume == r.Roles.NoConsume {
		out.Consume = s.Consume
	}
	if s.Provide != nil && *s.Provide == r.Roles.NoProvide {
		out.Provide = s.Provide
	}
	if s.Price != nil && *s.Price != r.Price {
		out.Price = s.Price
	}
	if s.Labels == nil {
		return out
	}
	out.Labels = map[string]*string{}
	for key := range r.Labels {
		if _, ok := s.Labels[key]; !ok {
			out.Labels[key] = nil
		}
	}
	for key, value := range s.Labels {
		if have, ok := r.Labels[key]; !ok || have != value {
			out.Labels[key] = &value
		}
	}
	return out
}

// as updates the fields of the spec that are set from the record.
func (s Spec) as(r peer.Record) Spec {
	if s.Consume != nil {
		s.Consume = new(!r.Roles.NoConsume)
	}
	if s.Provide != nil {
		s.Provide = new(!r.Roles.NoProvide)
	}
	if s.Price != nil {
		s.Price = new(r.Price)
	}
	if s.Labels != nil {
		s.Labels = r.Labels
	}
	return s
}

// Roles are the directions that are on.
type Roles struct {
	Consume bool `json:"consume"`
	Provide bool `json:"provide"`
}

// Status is the observed state. It has no constantly changing figures (round trip, bytes): each change would be a write
// to the SD card.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Asked              string             `json:"asked,omitempty"` // of a wish: the approved target
	ID                 string             `json:"id,omitempty"`
	Name               string             `json:"name,omitempty"`
	State              string             `json:"state,omitempty"`
	Reason             string             `json:"reason,omitempty"`
	Since              *metav1.Time       `json:"since,omitempty"`
	Trust              *Trust             `json:"trust,omitempty"`
	Address            string             `json:"address,omitempty"`
	Path               string             `json:"path,omitempty"`
	Prefixes           *Prefixes          `json:"prefixes,omitempty"`
	Roles              *Roles             `json:"roles,omitempty"`
	Withdrawn          bool               `json:"withdrawn,omitempty"`
	Cordoned           bool               `json:"cordoned,omitempty"`
	Version            string             `json:"version,omitempty"`
	KubernetesVersion  string             `json:"kubernetesVersion,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// Trust is how the peer came to be trusted.
type Trust struct {
	How string      `json:"how,omitempty"`
	At  metav1.Time `json:"at,omitempty"`
}

// Prefixes are the pod CIDRs, as each side sees the other.
type Prefixes struct {
	SeenAs   string `json:"seenAs,omitempty"`
	SeesUsAs string `json:"seesUsAs,omitempty"`
}

// fresh returns the new status of a peer. It is equal to the old one, times included, if nothing else changed.
func fresh(old Status, generation int64, v View) Status {
	s := Status{
		ObservedGeneration: generation, ID: string(v.ID), Name: v.Name, State: string(v.State), Reason: v.Reason,
		Since: second(v.Since), Address: addrText(v.View), Path: v.Path, Roles: &Roles{Consume: !v.Roles.NoConsume, Provide: !v.Roles.NoProvide},
		Withdrawn: v.TheirRoles.NoProvide, Cordoned: v.Cordoned,
		Version: v.Version, KubernetesVersion: v.KubeVersion,
	}
	if v.Trust.How != "" {
		s.Trust = &Trust{How: v.Trust.How, At: *second(v.Trust.At)}
	}
	if v.PeerMappedCIDR.IsValid() || v.LocalMappedCIDR.IsValid() {
		s.Prefixes = &Prefixes{}
		if v.PeerMappedCIDR.IsValid() {
			s.Prefixes.SeenAs = v.PeerMappedCIDR.String()
		}
		if v.LocalMappedCIDR.IsValid() {
			s.Prefixes.SeesUsAs = v.LocalMappedCIDR.String()
		}
	}
	if old.State == s.State && old.Since != nil {
		s.Since = old.Since // a restart of the supervisor is no change of the peer
	}
	ready := metav1.Condition{Type: Ready, Status: metav1.ConditionFalse, ObservedGeneration: generation, Reason: s.State, Message: s.Reason, LastTransitionTime: *s.Since}
	if v.State == peer.Connected {
		ready.Status = metav1.ConditionTrue
	}
	for _, c := range old.Conditions {
		if c.Type == Ready && c.Status == ready.Status {
			ready.LastTransitionTime = c.LastTransitionTime
		}
	}
	s.Conditions = []metav1.Condition{ready}
	return s
}

func addrText(v peer.View) string {
	if !v.Control.IsValid() {
		return ""
	}
	return v.Control.String()
}

// second truncates a time to the API's precision.
func second(t time.Time) *metav1.Time { out := metav1.NewTime(t.Truncate(time.Second)); return &out }

func fromAPI(u *unstructured.Unstructured) (*Peer, error) {
	p := &Peer{}
	return p, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, p)
}

func toAPI(p *Peer) (*unstructured.Unstructured, error) {
	p.TypeMeta = metav1.TypeMeta{APIVersion: groupVersion.String(), Kind: Kind}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	return &unstructured.Unstructured{Object: m}, err
}
