package volume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"rivulet/offload/policy"
)

// The values of RetainedLabel: the policy of the volume was Retain, or home's datastore does not know of the claim.
const (
	retainedByPolicy = "true"
	retainedUnknown  = "unknown-at-home"
)

// View is what home has on its targets.
type View struct {
	Away []Away `json:"away"`
	// Kept are the claims in twins without a volume at home.
	Kept []Kept `json:"kept"`
	// Silent are the virtual nodes whose targets do not answer, so that what is kept there is not in the list.
	Silent []string `json:"silent,omitempty"`
}

// Away is a claim of home whose data are on a target.
type Away struct {
	Claim string `json:"claim"` // NAMESPACE/NAME
	On    string `json:"on"`
	Size  string `json:"size"`
}

// Kept is a claim in a twin of home for which home has no volume.
type Kept struct {
	// Ref identifies it: NODE/NAMESPACE/CLAIM, with home's namespace and the claim's name in the twin.
	Ref string `json:"ref"`
	// Claim is the claim at home that it was made for, NAMESPACE/NAME.
	Claim string `json:"claim"`
	On    string `json:"on"`
	Size  string `json:"size"`
	Why   string `json:"why"`
}

// View lists what home has on its targets. What is kept there is read from them.
func (c *Controller) View(ctx context.Context) (v View, err error) {
	v.Away, v.Kept = []Away{}, []Kept{}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return v, err
	}
	for _, one := range volumes {
		if ref := one.Spec.ClaimRef; one.Labels[AwayLabel] != "" && ref != nil {
			v.Away = append(v.Away, Away{ref.Namespace + "/" + ref.Name, Node(one), one.Spec.Capacity.Storage().String()})
		}
	}
	slices.SortFunc(v.Away, func(a, b Away) int { return strings.Compare(a.Claim, b.Claim) })
	for _, p := range c.targets() {
		if !p.Up() {
			v.Silent = append(v.Silent, p.Node)
			continue
		}
		found, err := c.there(ctx, p)
		if err != nil {
			v.Silent = append(v.Silent, p.Node)
			continue
		}
		home, err := c.readHome(ctx)
		if err != nil {
			return v, err
		}
		for i := range found {
			claim := &found[i].claim
			if claim.DeletionTimestamp != nil || c.made(p, claim) || c.has(home, p, claim) {
				continue
			}
			why := "this cluster's datastore, which was put back, does not know of it"
			if claim.Labels[RetainedLabel] == retainedByPolicy {
				why = "retained, as the policy of its volume was"
			}
			v.Kept = append(v.Kept, Kept{ref(p, &found[i]), found[i].home + "/" + claim.Annotations[HomeClaimAnnotation], p.Node, claim.Spec.Resources.Requests.Storage().String(), why})
		}
	}
	return v, nil
}

func ref(p *Place, t *thing) string { return p.Node + "/" + t.home + "/" + t.claim.Name }

// targets are the places, one of each target, by node.
func (c *Controller) targets() (out []*Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range slices.Sorted(maps.Keys(c.places)) {
		if p := c.places[node]; !slices.ContainsFunc(out, func(o *Place) bool { return o.Target.ID() == p.Target.ID() }) {
			out = append(out, p)
		}
	}
	return out
}

// Unknown are the claims in twins that are kept because home's datastore does not know of them, as View names them, by
// node. It is of the last search of each target.
func (c *Controller) Unknown() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]string{}
	for node, p := range c.places {
		if refs := c.unknown[p.Target.ID()]; len(refs) > 0 && strings.HasPrefix(refs[0], node+"/") {
			out[node] = refs
		}
	}
	return out
}

// find returns a claim in a twin without a volume at home.
func (c *Controller) find(ctx context.Context, named string) (*Place, *thing, error) {
	parts := strings.Split(named, "/")
	if len(parts) != 3 {
		return nil, nil, fmt.Errorf("%q is no NODE/NAMESPACE/CLAIM; see: rivulet volumes", named)
	}
	p := c.Place(parts[0])
	switch {
	case p == nil:
		return nil, nil, fmt.Errorf("there is no virtual node %s; see: rivulet volumes", parts[0])
	case !p.Up():
		return nil, nil, fmt.Errorf("%s cannot be reached at the moment; see: rivulet peers", parts[0])
	}
	found, err := c.there(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(found, func(t thing) bool { return ref(p, &t) == named })
	if i < 0 {
		return nil, nil, fmt.Errorf("there is no claim %s; see: rivulet volumes", named)
	}
	t := &found[i]
	home, err := c.readHome(ctx)
	if err == nil && (c.has(home, p, &t.claim) || t.claim.DeletionTimestamp != nil) {
		err = fmt.Errorf("%s has the data of a claim of this cluster, or is being deleted; see: rivulet volumes, kubectl get pvc -A", named)
	}
	return p, t, err
}

// Discard deletes a claim in a twin, with its data, for which home has no volume.
func (c *Controller) Discard(ctx context.Context, named string) error {
	p, t, err := c.find(ctx, named)
	if err != nil {
		return err
	}
	err = p.Target.Client().CoreV1().PersistentVolumeClaims(t.claim.Namespace).Delete(ctx, t.claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &t.claim.UID}})
	c.Check(p.Node)
	return err
}

// Adopt makes a claim at home, and its volume, for a claim in a twin for which home has none. as is its name; "" is the one
// that the data were made for. It returns NAMESPACE/NAME. After a failure it may be called again.
func (c *Controller) Adopt(ctx context.Context, named, as string) (string, error) {
	p, t, err := c.find(ctx, named)
	if err != nil {
		return "", err
	}
	if as == "" {
		as = t.claim.Annotations[HomeClaimAnnotation]
	}
	if as == "" {
		return "", fmt.Errorf("%s does not say for which claim it was made; say a name: rivulet volumes adopt %[1]s --as NAME", named)
	}
	if !p.Offloaded(t.home) {
		return "", fmt.Errorf("namespace %s is not offloaded to %s, so no pod could use the data there; first: rivulet offload %[1]s --create --to %[2]s", t.home, p.Node)
	}
	want := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: t.home, Name: as}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: t.claim.Spec.AccessModes, VolumeMode: t.claim.Spec.VolumeMode, VolumeName: Name(t.claim.UID),
		Resources: corev1.VolumeResourceRequirements{Requests: t.claim.Spec.Resources.Requests},
	}}
	class, err := c.ownClass()
	if err != nil {
		return "", err
	}
	want.Spec.StorageClassName = &class.Name
	home, done := c.cfg.Home.CoreV1(), t.home+"/"+as
	switch have, err := home.PersistentVolumeClaims(t.home).Get(ctx, as, metav1.GetOptions{}); {
	case err == nil && have.Spec.VolumeName != want.Spec.VolumeName:
		return "", fmt.Errorf("there is a claim %s already, with other data or none; take another name: rivulet volumes adopt %s --as NAME; or delete that claim first: kubectl delete pvc -n %s %s", done, named, t.home, as)
	case err != nil && !apierrors.IsNotFound(err):
		return "", err
	}
	// The volume comes first, and the claim in the twin refers to it last: each is without effect before the next.
	v := Volume(want, class, want.Spec.VolumeName, p.Node, p.Target.ID())
	v.Annotations[ClaimAnnotation] = t.claim.Name
	for _, dry := range [][]string{{metav1.DryRunAll}, nil} {
		if dry == nil { // Kubernetes accepts the claim
			if err := c.adoptVolume(ctx, v); err != nil {
				return "", err
			}
		}
		if _, err := home.PersistentVolumeClaims(t.home).Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager, DryRun: dry}); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("claim: %w", err)
		}
	}
	if err := Stamp(ctx, c.cfg.Home, &t.claim); err != nil {
		return "", err
	}
	// Home's datastore answers with a volume when what it answers is on its disk, and with it the claim.
	if _, err := home.PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err != nil {
		return "", fmt.Errorf("volume: %w; try again", err)
	}
	delete(t.claim.Labels, RetainedLabel)
	t.claim.Labels[VolumeLabel], t.claim.Annotations[HomeClaimAnnotation] = v.Name, as
	if _, err := p.Target.Client().CoreV1().PersistentVolumeClaims(t.claim.Namespace).Update(ctx, &t.claim, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
		return "", fmt.Errorf("%s: %w; try again", p.Node, err)
	}
	c.cfg.Log.Info("data on another cluster are adopted", "claim", done, "volume", v.Name, "target", p.Node)
	c.Check(p.Node)
	return done, nil
}

// adoptVolume makes the volume of adopted data. One that is there is of an earlier try, which may have been for another name.
func (c *Controller) adoptVolume(ctx context.Context, want *corev1.PersistentVolume) error {
	api := c.cfg.Home.CoreV1().PersistentVolumes()
	_, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	v, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ref, to := v.Spec.ClaimRef, want.Spec.ClaimRef
	ours := v.DeletionTimestamp == nil && v.Labels[AwayLabel] == want.Labels[AwayLabel] && v.Annotations[ClaimAnnotation] == want.Annotations[ClaimAnnotation] && ref != nil
	switch {
	case ours && ref.Namespace == to.Namespace && ref.Name == to.Name && v.Status.Phase != corev1.VolumeReleased:
		return nil
	case ours && ref.UID == "":
		v.Spec.ClaimRef = to
		_, err := api.Update(ctx, v, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		return err
	}
	return fmt.Errorf("there is a volume %s already, and it is not free for these data; see what it is: kubectl describe pv %[1]s; and if nothing needs it: kubectl delete pv %[1]s", v.Name)
}

// ownClass is a StorageClass of Rivulet's, the default one if it is one.
func (c *Controller) ownClass() (found *storagev1.StorageClass, err error) {
	all, err := c.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *storagev1.StorageClass) int { return strings.Compare(a.Name, b.Name) })
	for _, class := range all {
		if class.Provisioner == Provisioner && (found == nil || class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true") {
			found = class
		}
	}
	if found == nil {
		return nil, fmt.Errorf("this cluster has no StorageClass with provisioner %s; it comes back when rivulet starts again: systemctl restart rivulet", Provisioner)
	}
	return found, nil
}
