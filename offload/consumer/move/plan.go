package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/offload/consumer/volume"
)

// plan checks whether a move is possible, before anything is changed.
func (m *Mover) plan(ctx context.Context, r Request) (n note, v *corev1.PersistentVolume, err error) {
	claim, err := m.cfg.Home.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Claim, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return n, nil, fmt.Errorf("there is no claim %s/%s; see: kubectl get pvc -A", r.Namespace, r.Claim)
	case err != nil:
		return n, nil, err
	case claim.DeletionTimestamp != nil:
		return n, nil, fmt.Errorf("claim %s/%s is being deleted; there is nothing to move", r.Namespace, r.Claim)
	case claim.Status.Phase != corev1.ClaimBound:
		return n, nil, fmt.Errorf("claim %s/%s has no volume yet (%s), and so no data; start the pod where they are to be", r.Namespace, r.Claim, claim.Status.Phase)
	}
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return n, nil, fmt.Errorf("claim %s/%s is of an ephemeral volume and goes with pod %s; use a claim of its own", r.Namespace, r.Claim, owner.Name)
	}
	v, err = m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return n, nil, err
	}
	if v.Annotations[volume.MoveAnnotation] != "" {
		return n, nil, fmt.Errorf("volume %s is being moved; wait for that", v.Name)
	}
	from, err := m.source(v)
	if err != nil {
		return n, nil, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Claim, err)
	}
	if from.node() == r.To || r.To == m.cfg.Local.Node() && from.node() == Home {
		return n, nil, fmt.Errorf("the data of %s/%s are on %s already; there is nothing to move", r.Namespace, r.Claim, r.To)
	}
	if r.To == m.cfg.Local.Node() {
		r.To = Home
	}
	n = note{Request: r, Was: remade(claim), Reclaim: v.Spec.PersistentVolumeReclaimPolicy, Volume: fmt.Sprintf("moved-%s-%s", v.UID, rand.String(5))}
	now, err := volume.Now(ctx, m.cfg.Home)
	if err != nil {
		return n, nil, err
	}
	n.Since = now.String()
	to, err := m.destination(n)
	if err == nil && to.ready != nil && !to.ready() {
		err = fmt.Errorf("%s cannot be reached at the moment; see: rivulet peers", r.To)
	}
	if err == nil && from.ready != nil && !from.ready() {
		err = fmt.Errorf("the data are on %s, which cannot be reached at the moment; see: rivulet peers", from.node())
	}
	if err != nil {
		return n, nil, err
	}
	users, err := m.users(ctx, r)
	if err != nil {
		return n, nil, err
	}
	if len(users) > 0 && !r.Evict {
		return n, nil, inUse(r, users)
	}
	return n, v, nil
}

func inUse(r Request, users []corev1.Pod) error {
	var names []string
	for i := range users {
		names = append(names, users[i].Name)
	}
	slices.Sort(names)
	return fmt.Errorf("claim %s/%s is in use by %s; stop what uses it (kubectl scale --replicas=0), or add --evict", r.Namespace, r.Claim, strings.Join(names, ", "))
}

// users are the scheduled pods that may have the claim's files open.
func (m *Mover) users(ctx context.Context, r Request) (out []corev1.Pod, err error) {
	pods, err := m.cfg.Home.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == "" {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == r.Claim {
				out = append(out, p)
				break
			}
		}
	}
	return out, nil
}

// remade is the claim as it is made again: without its binding.
func remade(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: claim.Name, Namespace: claim.Namespace, Labels: claim.Labels, Annotations: map[string]string{}, OwnerReferences: claim.OwnerReferences,
	}, Spec: *claim.Spec.DeepCopy()}
	for k, v := range claim.Annotations {
		switch k {
		case storageutil.AnnBindCompleted, storageutil.AnnBoundByController, storageutil.AnnSelectedNode:
		default:
			out.Annotations[k] = v
		}
	}
	out.Spec.VolumeName = ""
	return out
}
