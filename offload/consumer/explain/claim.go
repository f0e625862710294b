package explain

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/volume"
)

// claimsOf are the names of the claims that a pod uses.
func claimsOf(p *corev1.Pod) (names []string) {
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, p.Name+"-"+v.Name)
		}
	}
	return names
}

func (f Facts) claim(name string) *corev1.PersistentVolumeClaim { return named(f.Claims, name) }

func (f Facts) volume(name string) *corev1.PersistentVolume { return named(f.Volumes, name) }

// named finds an object by its name.
func named[T any, P interface {
	*T
	GetName() string
}](list []T, name string) *T {
	for i := range list {
		if P(&list[i]).GetName() == name {
			return &list[i]
		}
	}
	return nil
}

// unbound are reasons of the pod's claims that wait for something other than their first pod.
func (f Facts) unbound() (out []Reason) {
	for _, name := range claimsOf(f.Pod) {
		c := f.claim(name)
		if c == nil {
			out = append(out, Reason{Claim, "its claim " + name + " is not there", "make it: rivulet kubectl apply -n " + f.Pod.Namespace + " -f FILE.yaml"})
			continue
		}
		if c.Status.Phase == corev1.ClaimPending && f.waitsForPod(c) && f.provisioning(c) == nil {
			continue // it is bound after the pod is scheduled
		}
		for _, r := range f.pending(c) {
			r.What = "its claim " + name + " has no volume: " + r.What
			out = append(out, r)
		}
		if c.Status.Phase == corev1.ClaimLost {
			out = append(out, f.lostClaim(c)...)
		}
	}
	return out
}

// class is that of a claim, nil if it does not exist; a claim without a class has the default.
func (f Facts) class(c *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if c.Spec.StorageClassName != nil {
		return named(f.Classes, *c.Spec.StorageClassName)
	}
	for i := range f.Classes {
		if f.Classes[i].Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return &f.Classes[i]
		}
	}
	return nil
}

func (f Facts) waitsForPod(c *corev1.PersistentVolumeClaim) bool {
	class := f.class(c)
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// provisioning are the reasons found while the volume was to be made.
func (f Facts) provisioning(c *corev1.PersistentVolumeClaim) []Reason {
	say := f.eventOf([]types.UID{c.UID}, "ProvisioningFailed", "FailedBinding")
	if say == "" {
		return nil
	}
	what, cure, _ := strings.Cut(say, "; ")
	return []Reason{{Claim, what, cmp.Or(cure, "rivulet kubectl describe pvc -n "+c.Namespace+" "+c.Name)}}
}

// pending explains a claim without a volume.
func (f Facts) pending(c *corev1.PersistentVolumeClaim) []Reason {
	if c.Status.Phase != corev1.ClaimPending {
		return nil
	}
	see := "make it again with a class that there is" + parens(f.classNames()) + ": rivulet kubectl delete pvc -n " + c.Namespace + " " + c.Name
	switch name := c.Spec.StorageClassName; {
	case name != nil && *name == "":
		if found := f.provisioning(c); found != nil {
			return found
		}
		return []Reason{{Claim, "it has no class and waits for a volume that somebody makes by hand", see}}
	case f.class(c) == nil && name != nil:
		return []Reason{{Class, "there is no StorageClass " + *name, see}}
	case f.class(c) == nil:
		return []Reason{{Class, "it names no StorageClass, and none is the default", see}}
	}
	if found := f.provisioning(c); found != nil {
		return found
	}
	if users := f.users(c); f.waitsForPod(c) && len(users) == 0 {
		return []Reason{{Starting, "its volume is made where the first pod that uses it runs, and no pod uses it", "start one"}}
	} else if f.waitsForPod(c) {
		return f.worst(users)
	}
	return []Reason{{Starting, "its volume has not been made yet", "rivulet kubectl describe pvc -n " + c.Namespace + " " + c.Name}}
}

func (f Facts) classNames() string {
	var names []string
	for i := range f.Classes {
		names = append(names, f.Classes[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func parens(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// users are the pods that use a claim.
func (f Facts) users(c *corev1.PersistentVolumeClaim) (out []corev1.Pod) {
	for i := range f.Pods {
		if p := &f.Pods[i]; p.Namespace == c.Namespace && !over(p) && slices.Contains(claimsOf(p), c.Name) {
			out = append(out, *p)
		}
	}
	return out
}

// lostClaim explains a claim whose volume is gone.
func (f Facts) lostClaim(c *corev1.PersistentVolumeClaim) []Reason {
	if c.Status.Phase != corev1.ClaimLost && (c.Status.Phase != corev1.ClaimBound || f.volume(c.Spec.VolumeName) != nil) {
		return nil
	}
	return []Reason{{Claim, "its volume " + c.Spec.VolumeName + " is no more, and what was in it is lost", "make the claim again, and bring the data back from a backup: rivulet kubectl delete pvc -n " + c.Namespace + " " + c.Name}}
}

// bound explains a claim with a volume: where it is, and whether it is reachable.
func (f Facts) bound(c *corev1.PersistentVolumeClaim) []Reason {
	v := f.volume(c.Spec.VolumeName)
	if v == nil {
		return nil
	}
	node := f.node(volume.Node(v))
	if node != nil {
		if found := f.closed(node); len(found) > 0 {
			return []Reason{{found[0].Code, "the data are on " + node.Name + ": " + found[0].What, found[0].Cure}}
		}
	}
	for _, d := range c.Status.Conditions {
		if d.Type == volume.ReachableCondition && d.Status == corev1.ConditionFalse {
			what, cure, _ := strings.Cut(short(d.Message), "; ")
			return []Reason{{Claim, what, cure}}
		}
	}
	if p := f.problem("volume-missing", v.Name); p != nil {
		return []Reason{{Claim, p.Text, p.Cure}}
	}
	return nil
}

// wherever describes where the volume of a claim is.
func (f Facts) wherever(c *corev1.PersistentVolumeClaim) string {
	if v := f.volume(c.Spec.VolumeName); v != nil && volume.Node(v) != "" {
		return "its volume is on " + volume.Node(v)
	}
	return "it has a volume"
}
