package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"rivulet/offload/policy"
)

// pvProtection is Kubernetes' own finalizer: the volume is still bound to a claim.
const pvProtection = "kubernetes.io/pv-protection"

func (c *Controller) syncVolume(ctx context.Context, name string) error {
	v, err := c.volumes.Get(name)
	if err != nil || v.Labels[AwayLabel] == "" {
		return nil //nolint:nilerr // gone
	}
	if v.Annotations[MoveAnnotation] == "" {
		switch {
		case v.DeletionTimestamp != nil:
			err = c.purge(ctx, v)
		case v.Status.Phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
			err = Release(ctx, c.cfg.Home, v)
		case v.Status.Phase == corev1.VolumeBound:
			err = Claimed(ctx, c.cfg.Home, v)
		}
	}
	if err == nil && v.Status.Phase == corev1.VolumeBound {
		err = c.report(ctx, v)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return errNotYet
	}
	return err
}

// away returns the claim in the twin of a volume, nil if it is not there.
func (c *Controller) away(ctx context.Context, p *Place, v *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, typedcorev1.PersistentVolumeClaimInterface, error) {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil, nil, fmt.Errorf("volume %s belongs to no claim; its data on %s are not touched", v.Name, p.Node)
	}
	twins, err := p.Target.Twins(ctx)
	if err != nil {
		return nil, nil, err
	}
	twin, ok := twins[ref.Namespace]
	if !ok {
		return nil, nil, nil
	}
	api := p.Target.Client().CoreV1().PersistentVolumeClaims(twin)
	claim, err := api.Get(ctx, v.Annotations[ClaimAnnotation], metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.Labels[VolumeLabel] != v.Name {
		return nil, api, nil
	}
	return claim, api, err
}

// purge removes the claim away of a volume that is marked deleted, unless its data are to be retained, and then the
// finalizer. If the peering has ended, the claim is left to the deletion of the twin.
func (c *Controller) purge(ctx context.Context, v *corev1.PersistentVolume) error {
	if !slices.Contains(v.Finalizers, finalizer) || slices.Contains(v.Finalizers, pvProtection) {
		return nil
	}
	id := v.Labels[AwayLabel]
	p := c.of(id)
	switch {
	case p == nil && c.cfg.Peer(id) == "":
		c.cfg.Log.Warn("a volume is given up with the cluster that has its data", "volume", v.Name, "target", id)
		return c.letGo(ctx, v)
	case p == nil || !p.Up():
		return errNotYet
	}
	claim, api, err := c.away(ctx, p, v)
	if err != nil {
		return err
	}
	switch {
	case claim == nil:
		p.Freed(v.Spec.ClaimRef.Namespace)
	case v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		if claim.Labels[RetainedLabel] == "" {
			claim.Labels[RetainedLabel] = retainedByPolicy
			if _, err := api.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
				return err
			}
		}
		c.cfg.Log.Info("volume given up, its data are kept", "volume", v.Name, "target", p.Node, "claim", claim.Namespace+"/"+claim.Name)
	case claim.DeletionTimestamp != nil:
		return errNotYet
	default:
		// Home's datastore answers with what is on its disk: after a power cut here the volume is deleted, too.
		live, err := c.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if live.UID != v.UID || live.DeletionTimestamp == nil || live.Annotations[MoveAnnotation] != "" || live.Spec.PersistentVolumeReclaimPolicy != v.Spec.PersistentVolumeReclaimPolicy {
			return errNotYet
		}
		if err := api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return errNotYet // it goes with the last pod that uses it
	}
	return c.letGo(ctx, v)
}

func (c *Controller) letGo(ctx context.Context, v *corev1.PersistentVolume) error {
	free := v.DeepCopy()
	free.Finalizers = slices.DeleteFunc(free.Finalizers, func(f string) bool { return f == finalizer })
	_, err := c.cfg.Home.CoreV1().PersistentVolumes().Update(ctx, free, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return err
}

// removeOrphans deletes claims in twins that nobody at home has: power failed between the two, or the claim was deleted.
// Home's API has to know of the claim's time (Moment), and is read again just before a claim is deleted. A claim of
// which it does not know, because the datastore was put back since, is kept and labelled; a person adopts or deletes it.
// Only twins of namespaces that are offloaded to the place, or have a volume there, are searched: the target may name any.
// What fails for one claim does not end the search.
func (c *Controller) removeOrphans(ctx context.Context, p *Place) error {
	found, err := c.there(ctx, p)
	if err != nil {
		return err
	}
	home, err := c.readHome(ctx)
	if err != nil {
		return err
	}
	var kept []string
	var errs []error
	for i := range found {
		if claim := &found[i].claim; !found[i].known || claim.DeletionTimestamp != nil || claim.Labels[RetainedLabel] == retainedByPolicy {
			continue
		}
		keeps, err := c.settle(ctx, p, &found[i], home)
		if keeps {
			kept = append(kept, ref(p, &found[i]))
		}
		errs = append(errs, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unknown[p.Target.ID()] = kept
	return errors.Join(errs...)
}

// settle deletes a claim in a twin that nobody at home has, or labels it if home's API does not know of its time: it keeps
// that one. home was read after the claim.
func (c *Controller) settle(ctx context.Context, p *Place, t *thing, home *atHome) (keeps bool, err error) {
	claim, kept := &t.claim, t.claim.Labels[RetainedLabel] != ""
	api := p.Target.Client().CoreV1().PersistentVolumeClaims(claim.Namespace)
	has := c.made(p, claim)
	if !has && !kept { // what is kept is not deleted, so the cache is enough
		has = c.has(home, p, claim)
	}
	if has && !kept || !has && kept {
		return kept, nil
	}
	if has { // it was adopted, or home's datastore is a newer one again
		delete(claim.Labels, RetainedLabel)
		_, err := api.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		return false, err
	}
	if !home.now.Continues(claim.Annotations[HistoryAnnotation]) {
		c.cfg.Log.Warn("a claim is kept of which home's datastore does not know", "namespace", t.home, "claim", claim.Name, "target", p.Node)
		claim.Labels[RetainedLabel] = retainedUnknown
		_, err := api.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		return true, err
	}
	home, err = c.readHome(ctx)
	if err != nil || c.has(home, p, claim) {
		return false, err
	}
	if !home.now.Continues(claim.Annotations[HistoryAnnotation]) {
		return false, errNotYet // the next search labels it
	}
	c.cfg.Log.Info("removing a claim that belongs to nobody at home", "namespace", t.home, "claim", claim.Name, "target", p.Node)
	err = api.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return false, err
}

// thing is a claim in the twin of a namespace of home. known: the namespace is offloaded to the place, or has a volume there.
type thing struct {
	home  string
	known bool
	claim corev1.PersistentVolumeClaim
}

// Checked reports whether the names of a claim that a target tells are names, which may be shown and typed. The name of
// the claim at home is removed if it is none.
func Checked(claim *corev1.PersistentVolumeClaim) bool {
	if len(validation.IsDNS1123Subdomain(claim.Annotations[HomeClaimAnnotation])) > 0 {
		delete(claim.Annotations, HomeClaimAnnotation)
	}
	return len(validation.IsDNS1123Subdomain(claim.Name)) == 0 && len(validation.IsDNS1123Subdomain(Name(claim.UID))) == 0
}

// there lists the claims of this cluster at a place, in the order of their names. Those whose names are none are left out.
func (c *Controller) there(ctx context.Context, p *Place) (out []thing, err error) {
	twins, err := p.Target.Twins(ctx)
	if err != nil {
		return nil, err
	}
	volumes, err := c.volumes.List(labels.SelectorFromSet(labels.Set{AwayLabel: p.Target.ID()}))
	if err != nil {
		return nil, err
	}
	for _, home := range slices.Sorted(maps.Keys(twins)) {
		has := func(v *corev1.PersistentVolume) bool {
			return v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == home
		}
		known := p.Offloaded(home) || slices.ContainsFunc(volumes, has)
		list, err := p.Target.Client().CoreV1().PersistentVolumeClaims(twins[home]).List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + c.cfg.Cluster + "," + VolumeLabel})
		if apierrors.IsForbidden(err) {
			continue // an older provider lends no volumes
		}
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			if claim := &list.Items[i]; Checked(claim) {
				out = append(out, thing{home, known, *claim})
			}
		}
	}
	return out, nil
}

// made reports whether the cache has the volume of a claim at a place.
func (c *Controller) made(p *Place, claim *corev1.PersistentVolumeClaim) bool {
	v, err := c.volumes.Get(claim.Labels[VolumeLabel])
	return err == nil && v.Labels[AwayLabel] == p.Target.ID()
}

// atHome is what home's API had at one time, at or before now.
type atHome struct {
	claims  []corev1.PersistentVolumeClaim
	volumes []corev1.PersistentVolume
	now     Moment
}

// readHome reads from home's API, its moment last.
func (c *Controller) readHome(ctx context.Context) (*atHome, error) {
	claims, err := c.cfg.Home.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	volumes, err := c.cfg.Home.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	now, err := Now(ctx, c.cfg.Home)
	return &atHome{claims.Items, volumes.Items, now}, err
}

// has reports whether home has the volume of a claim at a place, will have it, has a claim that has lost it, or has a volume
// that is being moved to it. The name alone does not say: a move that failed may have left a copy of that name at another place.
func (c *Controller) has(home *atHome, p *Place, claim *corev1.PersistentVolumeClaim) bool {
	name, elsewhere := claim.Labels[VolumeLabel], false
	for i := range home.volumes {
		v := &home.volumes[i]
		if v.Name == name && v.Labels[AwayLabel] == p.Target.ID() || c.movedTo(v, p, name) {
			return true
		}
		elsewhere = elsewhere || v.Name == name
	}
	return slices.ContainsFunc(home.claims, func(claim corev1.PersistentVolumeClaim) bool {
		return claim.Spec.VolumeName == "" && Name(claim.UID) == name || claim.Spec.VolumeName == name && !elsewhere
	})
}

// movedTo reports whether a volume is being moved to the volume of that name at a place. A note that is not understood, or
// of a node that is not served, may be of any place.
func (c *Controller) movedTo(v *corev1.PersistentVolume, p *Place, name string) bool {
	text := v.Annotations[MoveAnnotation]
	if text == "" {
		return false
	}
	var note struct{ To, Volume string }
	if json.Unmarshal([]byte(text), &note) != nil {
		return true
	}
	to := c.Place(note.To)
	return note.Volume == name && (to == nil || to.Target.ID() == p.Target.ID())
}
