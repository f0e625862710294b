package courses

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"rivulet/appliance/vcluster"
	"rivulet/appliance/vcluster/objects"
)

// Names in the API.
const (
	Kind = "Course"
	// Label on a VirtualCluster names its Course.
	Label = "rivulet.dev/course"
	// appliedAnnotation on a VirtualCluster: the manifests of its Course were applied inside.
	appliedAnnotation = "rivulet.dev/course-manifests"
	// warnedAnnotation is the end of which an event inside was made.
	warnedAnnotation = "rivulet.dev/course-warned"
	// Ready is the condition that all members can be used, Expiring that its end is near or was, ImagesReady that all of
	// its images are on this device.
	Ready, Expiring, ImagesReady = "Ready", "Expiring", "ImagesReady"
)

const (
	// warning is how long before its end a Course says so.
	warning = 7 * 24 * time.Hour
	// defaultKeep is Spec.Keep of an object without one.
	defaultKeep = 30 * 24 * time.Hour
	// saveEvery is how far Status.PausedFor may be behind.
	saveEvery = 10 * time.Minute
	// maxDepth bounds the chain of parents.
	maxDepth = 4
)

// Resource is the API resource of the objects.
var Resource = objects.Resource.GroupVersion().WithResource("courses")

// Course is the object.
type Course struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              Spec   `json:"spec,omitempty"`
	Status            Status `json:"status,omitempty"`
}

// Spec is the desired state.
type Spec struct {
	Names  []string `json:"names,omitempty"`
	Count  int      `json:"count,omitempty"`
	Parent string   `json:"parent,omitempty"`
	// Cap bounds the requests of all members together, and of the members of Courses whose Parent this one is.
	Cap       corev1.ResourceList `json:"cap,omitempty"`
	Template  map[string]any      `json:"template,omitempty"` // objects.Spec; what is left out has the defaults of that
	Manifests string              `json:"manifests,omitempty"`
	// Images are brought to this device before members need them, and kept as long as the Course is there.
	Images  []string     `json:"images,omitempty"`
	Expires *metav1.Time `json:"expires,omitempty"`
	Keep    string       `json:"keep,omitempty"`
}

// Status is the observed state.
type Status struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Members            int                `json:"members"`
	Usable             int                `json:"usable"`
	Unlisted           []string           `json:"unlisted,omitempty"`
	PausedFor          string             `json:"pausedFor,omitempty"` // since its end, while rivulet ran; at most saveEvery behind
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (c *Course) key() string { return c.Namespace + "/" + c.Name }

// members are the names of its virtual clusters, sorted.
func (c *Course) members() ([]string, error) {
	var out []string
	for _, name := range c.Spec.Names {
		out = append(out, c.Name+"-"+name)
	}
	for i := range c.Spec.Count {
		out = append(out, fmt.Sprintf("%s-%02d", c.Name, i+1))
	}
	slices.Sort(out)
	if len(out) > vcluster.MaxClusters {
		return nil, fmt.Errorf("%d members are too many; a device has at most %d virtual clusters", len(out), vcluster.MaxClusters)
	}
	for i, name := range out {
		if i > 0 && out[i-1] == name {
			return nil, fmt.Errorf("%s is there twice; name each member once", name)
		}
		if err := (&vcluster.Spec{Name: name}).Check(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// groups are the bounds that apply to its members: its own, and those of its parents.
func (c *Course) groups(all map[string]*Course) (out []vcluster.Group, err error) {
	for at, depth := c, 0; ; depth++ {
		if depth == maxDepth {
			return nil, fmt.Errorf("its parents are a circle, or more than %d; change spec.parent", maxDepth-1)
		}
		g := vcluster.Group{Name: at.key(), Cap: at.Spec.Cap}
		if err := vcluster.CheckGroup(g); err != nil {
			return nil, fmt.Errorf("course %s: spec.cap: %w", at.Name, err)
		}
		out = append(out, g)
		if at.Spec.Parent == "" {
			return out, nil
		}
		parent := all[c.Namespace+"/"+at.Spec.Parent]
		if parent == nil {
			return nil, fmt.Errorf("there is no course %.60s, which spec.parent of %s names; create it, or change that", at.Spec.Parent, at.Name)
		}
		at = parent
	}
}

// keep is how long it stays after its end.
func (c *Course) keep() (time.Duration, error) {
	if c.Spec.Keep == "" {
		return defaultKeep, nil
	}
	keep, err := time.ParseDuration(c.Spec.Keep)
	if err != nil {
		return 0, fmt.Errorf("spec.keep %.40q is no time; say it like 720h", c.Spec.Keep)
	}
	return keep, nil
}

// phase is where in its life a Course is.
type phase int

const (
	running  phase = iota
	expiring       // it ends within a week
	expired        // its members are paused
	over           // it is expired, and to be deleted if it was seen so for long enough
)

// phase is where it is at a time.
func (c *Course) phase(now time.Time, keep time.Duration) phase {
	if c.Spec.Expires == nil {
		return running
	}
	left := c.Spec.Expires.Sub(now)
	switch {
	case left > warning:
		return running
	case left > 0:
		return expiring
	case left > -keep:
		return expired
	}
	return over
}

// pauses is how long Courses have been expired, by UID. A wall clock alone deletes nothing: this is counted in time that
// this process has run, each stretch between two passes once; a stretch without passes does not count.
type pauses map[types.UID]pause

type pause struct {
	total time.Duration
	until time.Time // of the last pass
}

// count returns how long a Course has been expired. After a restart it begins with what the status says; a phase before
// the end, also by a clock that was set back, begins anew.
func (p pauses) count(c *Course, at phase) time.Duration {
	if at < expired {
		delete(p, c.UID)
		return 0
	}
	now := time.Now()
	one, known := p[c.UID]
	if known {
		one.total += min(now.Sub(one.until), 2*checkEvery)
	} else if d, err := time.ParseDuration(c.Status.PausedFor); err == nil { // an unreadable one counts as zero
		one.total = max(0, d)
	}
	one.until = now
	p[c.UID] = one
	return one.total
}

// noted is what the status says of a count: it is written every saveEvery.
func (c *Course) noted(total time.Duration) string {
	if was, _ := time.ParseDuration(c.Status.PausedFor); total >= was && total-was < saveEvery {
		return c.Status.PausedFor
	}
	if total == 0 {
		return ""
	}
	return total.Truncate(time.Minute).String()
}

// spec is that of each member's VirtualCluster.
func (c *Course) spec(groups []vcluster.Group, paused bool) (map[string]any, error) {
	out := maps.Clone(c.Spec.Template)
	if out == nil {
		out = map[string]any{}
	}
	var list []any
	for i := range groups {
		one, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&groups[i])
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	delete(out, "groups")
	if list != nil {
		out["groups"] = list
	}
	if paused {
		out["paused"] = true
	}
	return out, nil
}

// member is the VirtualCluster of that name.
func (c *Course) member(name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion(objects.Resource.GroupVersion().String())
	u.SetKind(objects.Kind)
	u.SetNamespace(c.Namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{Label: c.Name})
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: objects.Resource.GroupVersion().String(), Kind: Kind, Name: c.Name, UID: c.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}})
	return u
}

// FromAPI reads an object.
func FromAPI(u *unstructured.Unstructured) (*Course, error) {
	c := &Course{}
	return c, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, c)
}

func reference(c *Course) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: objects.Resource.GroupVersion().String(), Kind: Kind, Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
}
