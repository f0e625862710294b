package volume

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/policy"
)

// report writes on a claim where its data are, and whether they are reachable, for users whose pod waits for its
// volume.
func (c *Controller) report(ctx context.Context, v *corev1.PersistentVolume) error {
	ref := v.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	claim, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.UID != ref.UID {
		return nil //nolint:nilerr // its change queues it again
	}
	want, err := c.reach(ctx, v)
	if err != nil {
		return err
	}
	for _, have := range claim.Status.Conditions {
		if have.Type == ReachableCondition && have.Status == want.Status && have.Reason == want.Reason && have.Message == want.Message {
			return nil
		}
	}
	if want.Status == corev1.ConditionFalse {
		c.cfg.Recorder.Event(claim, corev1.EventTypeWarning, reasonAway, want.Message)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PersistentVolumeClaimCondition{want}}})
	if err != nil {
		return err
	}
	// Conditions are merged by type, so those of other writers stay.
	_, err = c.cfg.Home.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: policy.FieldManager}, "status")
	return err
}

func (c *Controller) reach(ctx context.Context, v *corev1.PersistentVolume) (corev1.PersistentVolumeClaimCondition, error) {
	out := corev1.PersistentVolumeClaimCondition{Type: ReachableCondition, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	id := v.Labels[AwayLabel]
	node := Node(v)
	p := c.of(id)
	switch {
	case p == nil && c.cfg.Peer(id) == "":
		out.Reason, out.Message = "PeerGone", "the data are on "+node+" ("+id+"), which is no peer any more; peer with it again (rivulet peer "+node+"), or delete the claim"
	case p == nil || !p.Up():
		out.Reason, out.Message = "PeerSilent", "the data are on "+node+", which cannot be reached; pods that need them wait; see: rivulet peers"
	default:
		claim, _, err := c.away(ctx, p, v)
		if err != nil {
			return out, err
		}
		if claim == nil {
			out.Reason, out.Message = "ClaimMissing", "claim "+v.Annotations[ClaimAnnotation]+" is not on "+node+" any more: somebody has deleted the data there; restore them from a backup, or delete the claim"
			break
		}
		out.Status, out.Reason, out.Message = corev1.ConditionTrue, "Away", "the data are on "+node+", claim "+claim.Namespace+"/"+claim.Name
	}
	return out, nil
}

// Node is the node, virtual or not, that a volume is bound to.
func Node(v *corev1.PersistentVolume) string {
	if a := v.Spec.NodeAffinity; a != nil && a.Required != nil {
		for _, t := range a.Required.NodeSelectorTerms {
			for _, e := range t.MatchExpressions {
				if e.Key == corev1.LabelHostname && len(e.Values) > 0 {
					return e.Values[0]
				}
			}
		}
	}
	return v.Labels[AwayLabel]
}

// BeingDeleted is why no new pod gets the claim, in the scheduler's words.
func BeingDeleted(claim string) string {
	return fmt.Sprintf("persistentvolumeclaim %q is being deleted; make one of another name, or wait until it is gone", claim)
}

// AwayClaimOf returns the name in the twin, on that target, of a pod's claim; or why there is none, with a cure. The error
// is a *Foreign if there never will be one.
func (c *Controller) AwayClaimOf(ctx context.Context, namespace, name string, target string) (claim, why string, err error) {
	home, err := c.cfg.Home.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	if home.DeletionTimestamp != nil {
		return "", BeingDeleted(name), nil
	}
	if home.Spec.VolumeName == "" {
		return "", "claim " + name + " has no volume yet; the scheduler has to place its first pod: leave spec.nodeName out", nil
	}
	v, err := c.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, home.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	if kind := ForeignKind(v); kind != "" {
		return "", "", &Foreign{Claim: name, Volume: v.Name, Kind: kind}
	}
	if v.Labels[AwayLabel] != target {
		return "", "the data of claim " + name + " are elsewhere (volume " + v.Name + "); move them: rivulet move volume " + namespace + "/" + name + " PEER", nil
	}
	return v.Annotations[ClaimAnnotation], "", nil
}
