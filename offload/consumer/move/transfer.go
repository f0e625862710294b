package move

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
)

// transfer continues a move from its present state to its success or its undo. An error of a job whose context has
// ended means nothing: the move continues after the next start.
func (m *Mover) transfer(ctx context.Context, j *Job) error {
	n := j.note
	if !n.Copied && !n.Back {
		err := m.bring(ctx, j, n)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			n.Back, n.Why = true, err.Error()
		} else {
			n.Copied = true
		}
		if err := m.write(ctx, j.volume, n, corev1.PersistentVolumeReclaimRetain); err != nil {
			return err
		}
		if err := m.step("written down"); err != nil {
			return err
		}
	}
	for {
		if !n.Back {
			j.at(Switching)
			err := m.persist(ctx, j, n, m.finish)
			if err == nil {
				j.at(Done)
				m.cfg.Log.Info("volume moved", "claim", n.Namespace+"/"+n.Claim, "to", n.To)
				m.record(ctx, n, corev1.EventTypeNormal, "VolumeMoved", "the data are on "+n.To+" now")
				return nil
			}
			if !errors.Is(err, errDeleted) {
				return err
			}
			n.Back, n.Why = true, fmt.Sprintf("the copy, volume %s, was deleted meanwhile", n.Volume)
			if err := m.write(ctx, j.volume, n, corev1.PersistentVolumeReclaimRetain); err != nil {
				return err
			}
		}
		j.at(Undoing)
		err := m.persist(ctx, j, n, m.undo)
		if err == nil {
			break
		}
		if !errors.Is(err, errOnlyCopy) {
			return err
		}
		m.cfg.Log.Warn("the original of a volume that was moved is gone; its claim gets the copy, which is complete", "claim", n.Namespace+"/"+n.Claim, "to", n.To)
		n.Copied, n.Back, n.Why = true, false, ""
		if err := m.write(ctx, j.volume, n, corev1.PersistentVolumeReclaimRetain); err != nil {
			return err
		}
	}
	m.cfg.Log.Warn("a volume was not moved", "claim", n.Namespace+"/"+n.Claim, "to", n.To, "why", n.Why)
	m.record(ctx, n, corev1.EventTypeWarning, "VolumeNotMoved", "the data stay where they were: "+n.Why)
	return errors.New(n.Why)
}

// errDeleted is the reason of an error about a volume that a person or another program has deleted during the move.
var errDeleted = errors.New("it was deleted meanwhile")

// errOnlyCopy is the error of an undo whose original is gone, and whose copy is complete.
var errOnlyCopy = errors.New("only the copy is left")

// persist repeats a step that must succeed in the end, however often it fails.
func (m *Mover) persist(ctx context.Context, j *Job, n note, do func(context.Context, *Job, note) error) error {
	for {
		err := do(ctx, j, n)
		if err == nil || ctx.Err() != nil || errors.As(err, new(final)) {
			return err
		}
		m.cfg.Log.Warn("a claim is not bound again yet", "claim", n.Namespace+"/"+n.Claim, "err", err)
		j.set(func(p *Progress) { p.Trouble = err.Error() })
		if !changes.Wait(ctx, m.cfg.Pause) {
			return ctx.Err()
		}
	}
}

func (m *Mover) record(ctx context.Context, n note, kind, reason, text string) {
	if claim, err := m.cfg.Home.CoreV1().PersistentVolumeClaims(n.Namespace).Get(ctx, n.Claim, metav1.GetOptions{}); err == nil {
		m.cfg.Recorder.Event(claim, kind, reason, text)
	}
}

// bring holds the claim and copies, until the new volume is complete.
func (m *Mover) bring(ctx context.Context, j *Job, n note) error {
	j.at(Holding)
	if err := m.hold(ctx, j, n); err != nil {
		return err
	}
	if err := m.step("held"); err != nil {
		return err
	}
	if err := m.empty(ctx, n); err != nil {
		return err
	}
	deadline := time.Now().Add(m.cfg.Patience)
	unmounted := time.Now().Add(min(m.cfg.Patience, unmounting))
	for {
		err := m.copy(ctx, j, n)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if isFinal(err) {
			return err
		}
		if inUseBy(err) && time.Now().After(unmounted) {
			return fmt.Errorf("%w; a pod that was deleted by force writes until its time to end is over: move again then", err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w; it was tried for %s", err, m.cfg.Patience)
		}
		m.cfg.Log.Info("copying a volume failed and is tried again", "claim", n.Namespace+"/"+n.Claim, "to", n.To, "err", err)
		j.set(func(p *Progress) { p.Trouble = err.Error() })
		if !changes.Wait(ctx, m.cfg.Pause) {
			return ctx.Err()
		}
	}
}

// hold marks the claim deleted and keeps it: the scheduler starts no pod that uses it, and no controller makes another
// of its name.
func (m *Mover) hold(ctx context.Context, j *Job, n note) error {
	api := m.cfg.Home.CoreV1().PersistentVolumeClaims(n.Namespace)
	return retry(ctx, func() error {
		claim, err := api.Get(ctx, n.Claim, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName != j.volume {
			return final{fmt.Errorf("claim %s/%s was deleted meanwhile", n.Namespace, n.Claim)}
		}
		if err != nil {
			return err
		}
		if !slices.Contains(claim.Finalizers, Finalizer) {
			if claim.DeletionTimestamp != nil {
				return final{fmt.Errorf("claim %s/%s was deleted meanwhile", n.Namespace, n.Claim)}
			}
			claim.Finalizers = append(claim.Finalizers, Finalizer)
			if claim, err = api.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil {
				return err
			}
		}
		if claim.DeletionTimestamp != nil {
			return nil
		}
		return api.Delete(ctx, n.Claim, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	})
}

// empty waits until no pod has the files open, and evicts those that do if the user wants that.
func (m *Mover) empty(ctx context.Context, n note) error {
	for deadline := time.Now().Add(leave); ; {
		users, err := m.users(ctx, n.Request)
		if err == nil && len(users) == 0 {
			return nil
		}
		if len(users) > 0 && !n.Evict {
			return inUse(n.Request, users)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w; they were asked to leave and did not within %s", errors.Join(err, inUse(n.Request, users)), leave)
		}
		for i := range users {
			if users[i].DeletionTimestamp != nil {
				continue
			}
			// Budgets decide: a refusal is retried. A pod that has ended is no obstacle.
			_ = m.cfg.Home.PolicyV1().Evictions(n.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace, Name: users[i].Name}})
		}
		if !changes.Wait(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// copy makes the new volume, and returns once the files on both sides are equal. A volume that is there was made after that.
func (m *Mover) copy(ctx context.Context, j *Job, n note) error {
	if err := m.ours(ctx, n); err != nil {
		return err
	}
	made, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, n.Volume, metav1.GetOptions{})
	if err == nil && made.DeletionTimestamp == nil {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	old, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, j.volume, metav1.GetOptions{})
	if err != nil {
		return err
	}
	from, err := m.source(old)
	if err != nil {
		return err
	}
	to, err := m.destination(n)
	if err != nil {
		return err
	}
	if from.hold != nil {
		held, release, err := from.hold(ctx)
		if err != nil {
			return err
		}
		defer release()
		ctx = held
	}
	total, err := from.total(ctx)
	if err != nil {
		return err
	}
	j.set(func(p *Progress) { p.Step, p.Bytes, p.Total = Copying, 0, total.Bytes })
	if err := to.prepare(ctx); err != nil {
		return err
	}
	if err := m.step("prepared"); err != nil {
		return err
	}
	going, end := context.WithCancelCause(ctx)
	defer end(nil)
	late := time.AfterFunc(stall, func() { end(fmt.Errorf("nothing was carried for %s; see: rivulet peers", stall)) })
	defer late.Stop()
	files, err := from.read(going)
	if err != nil {
		return err
	}
	got, err := to.write(going, total.Bytes, counted{files, j, late})
	files.Close()
	if err != nil {
		return errors.Join(context.Cause(going), err)
	}
	j.at(Comparing)
	want, err := from.sum(ctx)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the copy differs from the original (%d files, %d bytes there; %d files, %d bytes here); does something write to it?", got.Files, got.Bytes, want.Files, want.Bytes)
	}
	if err := m.step("copied"); err != nil {
		return err
	}
	v := to.volume()
	v.Spec.PersistentVolumeReclaimPolicy = n.Reclaim
	_, err = m.cfg.Home.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{FieldManager: policy.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return final{err}
	}
	return err
}

// finish binds the claim to the new volume and releases the old one. It returns errDeleted if the new volume was deleted
// before the claim was bound to it; then nothing is released.
func (m *Mover) finish(ctx context.Context, j *Job, n note) error {
	if err := m.rebind(ctx, n, j.volume, n.Volume); err != nil {
		return err
	}
	if err := m.step("switched"); err != nil {
		return err
	}
	if err := m.strays(ctx, n); err != nil {
		return err
	}
	copied, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, n.Volume, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && copied.DeletionTimestamp != nil {
		return fmt.Errorf("volume %s with the copy is being deleted, and the original, volume %s, is kept; go back to that: kubectl delete pvc -n %s %s", n.Volume, j.volume, n.Namespace, n.Claim)
	}
	if err != nil {
		return err
	}
	if n.Reclaim == corev1.PersistentVolumeReclaimRetain {
		j.set(func(p *Progress) { p.Kept = j.volume })
	}
	return m.release(ctx, j.volume, n.Reclaim)
}

// strays deletes pods that were placed at the old location before the scheduler had received that the claim was held.
// No kubelet has started one, since it reads the claim itself, and none ever would; their replacements are placed by
// the new volume.
func (m *Mover) strays(ctx context.Context, n note) error {
	node := n.To
	if n.To == Home {
		node = m.cfg.Local.Node()
	}
	users, err := m.users(ctx, n.Request)
	if err != nil {
		return err
	}
	for _, p := range users {
		if p.Spec.NodeName == node || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		err := m.cfg.Home.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
		m.cfg.Log.Info("a pod was placed before its data were moved, and is deleted", "pod", p.Namespace+"/"+p.Name, "node", p.Spec.NodeName, "to", node)
	}
	return nil
}

// gone reports whether an error of original says that the data are not there for good: by the device or the peer that had
// them, or since a person has deleted the volume.
func gone(err error) bool {
	var said *rpc.Error
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDeleted) || errors.As(err, &said) && (said.Code == "no-claim" || said.Code == "no-twin")
}

// original returns why the data of the old volume are not known to be there.
func (m *Mover) original(ctx context.Context, old string) error {
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	v, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, old, metav1.GetOptions{})
	if err == nil && v.DeletionTimestamp != nil {
		err = fmt.Errorf("volume %s: %w", old, errDeleted)
	}
	if err != nil {
		return err
	}
	from, err := m.source(v)
	switch {
	case err != nil:
		return err
	case from.ready != nil && !from.ready():
		return fmt.Errorf("%s cannot be reached at the moment; see: rivulet peers", from.node())
	}
	_, err = from.total(ctx)
	switch {
	case inUseBy(err):
		return nil
	case errors.Is(err, fs.ErrNotExist): // a file, or the folder, which was moved meanwhile
		return fmt.Errorf("volume %s: %v; it is read again", old, err) //nolint:errorlint // it is not gone
	}
	return err
}

// undo binds the claim to the old volume again and removes the copy, whatever the claim's policy is: it is a second one.
// While the original cannot be read, a complete copy is kept, with the claim held; if it is gone, the error is errOnlyCopy.
// The copy's volume is made after both were compared: with it the copy is complete. A datastore that has lost the end of a
// move, or was restored from before it, has such a note.
func (m *Mover) undo(ctx context.Context, j *Job, n note) error {
	missing := m.original(ctx, j.volume)
	copied, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, n.Volume, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		to, err := m.destination(n)
		if err == nil {
			err = m.incomplete(ctx, n, missing)
		}
		if err == nil {
			err = to.discard(ctx)
		}
		if err != nil { // an orphaned claim there is found later
			m.cfg.Log.Warn("what was begun of a copy is not removed", "to", n.To, "err", err)
		}
	case err != nil:
		return err
	case gone(missing) && copied.DeletionTimestamp == nil:
		return final{fmt.Errorf("the original, volume %s, is gone: %w", j.volume, errOnlyCopy)}
	case missing != nil && copied.DeletionTimestamp == nil:
		return fmt.Errorf("the original, volume %s, cannot be read, and the copy, volume %s, is kept until it can: %w; if the original is lost for good, the claim gets the copy after: kubectl delete pv %[1]s --wait=false", j.volume, n.Volume, missing)
	case missing == nil:
		if err := m.ours(ctx, n); isFinal(err) { // the copy may have been used since, and be the newer one
			m.cfg.Log.Warn("the copy of a move is kept", "volume", n.Volume, "err", err)
			break
		} else if err != nil {
			return err
		}
		err := m.change(ctx, n.Volume, func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		})
		if err == nil {
			err = m.cfg.Home.CoreV1().PersistentVolumes().Delete(ctx, n.Volume, metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if err := m.rebind(ctx, n, j.volume, j.volume); err != nil {
		return err
	}
	return m.release(ctx, j.volume, n.Reclaim)
}

// incomplete returns an error if a copy without a volume may be complete, and the only one; missing is why the original
// cannot be read. In the history of the move the original is released only after that volume is on the disk.
func (m *Mover) incomplete(ctx context.Context, n note, missing error) error {
	if missing != nil && (gone(missing) || n.Since == "") {
		return missing
	}
	if err := m.ours(ctx, n); err != nil || missing == nil {
		return err
	}
	now, err := volume.Now(ctx, m.cfg.Home)
	if err == nil && !now.Continues(n.Since) { // after a power cut the card may be an older image
		err = missing
	}
	return err
}

// ours returns an error if home's API is older than the move: it was restored since the move began, and what the move has
// made may be complete by now, and the only copy. A move of an earlier version does not say.
func (m *Mover) ours(ctx context.Context, n note) error {
	if n.Since == "" {
		return nil
	}
	now, err := volume.Now(ctx, m.cfg.Home)
	if err == nil && !now.Follows(n.Since) {
		err = final{fmt.Errorf("home's datastore was put back since the move began; what it has copied to %s is kept; see: rivulet volumes", n.To)}
	}
	return err
}

// release removes the note; a volume without a claim is then left to its provisioner.
func (m *Mover) release(ctx context.Context, name string, reclaim corev1.PersistentVolumeReclaimPolicy) error {
	err := m.change(ctx, name, func(v *corev1.PersistentVolume) {
		delete(v.Annotations, volume.MoveAnnotation)
		v.Spec.PersistentVolumeReclaimPolicy = reclaim
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// rebind releases the held claim, and binds the next one of its name to the volume to. Another controller may make that
// claim first: the volume has a reference to the claim, so that this one gets it too. It returns errDeleted if the volume
// is deleted, and releases both volumes if the namespace is.
func (m *Mover) rebind(ctx context.Context, n note, old, to string) error {
	ctx, cancel := context.WithTimeout(ctx, bind)
	defer cancel()
	api := m.cfg.Home.CoreV1().PersistentVolumeClaims(n.Namespace)
	ending := false // the namespace was seen with a deletion time
	for {
		claim, err := api.Get(ctx, n.Claim, metav1.GetOptions{})
		switch {
		case err == nil && slices.Contains(claim.Finalizers, Finalizer):
			if ns, err := m.cfg.Home.CoreV1().Namespaces().Get(ctx, n.Namespace, metav1.GetOptions{}); err == nil { // the claim keeps it
				ending = ns.DeletionTimestamp != nil
			}
			claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == Finalizer })
			_, err = api.Update(ctx, claim, metav1.UpdateOptions{FieldManager: policy.FieldManager})
		case err == nil && claim.DeletionTimestamp != nil: // being deleted
		case err == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == to:
			return nil
		case err == nil && claim.Spec.VolumeName != "" && claim.Spec.VolumeName != to:
			return final{fmt.Errorf("claim %s/%s was bound to volume %s meanwhile; the data are in volume %s", n.Namespace, n.Claim, claim.Spec.VolumeName, to)}
		case err == nil: // Kubernetes binds it
		case apierrors.IsNotFound(err):
			var free bool
			if free, err = m.reserve(ctx, to); free {
				again := n.Was.DeepCopy()
				again.Spec.VolumeName = to
				_, err = api.Create(ctx, again, metav1.CreateOptions{FieldManager: policy.FieldManager})
				terminating := apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
				if terminating || apierrors.IsNotFound(err) {
					return m.abandon(ctx, n, old, ending || terminating)
				}
			}
			if errors.Is(err, errDeleted) {
				return err
			}
			if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
				return fmt.Errorf("claim %s/%s cannot be made again: %w; the data are in volume %s", n.Namespace, n.Claim, err, to)
			}
		}
		if !changes.Wait(ctx, glance) {
			return fmt.Errorf("claim %s/%s is not bound to volume %s yet (%w); it is gone on with after the next start", n.Namespace, n.Claim, to, errors.Join(ctx.Err(), err))
		}
	}
}

// abandon ends a move whose namespace is gone, and with it the claim: it removes the copy, and releases the old volume.
// That is retained if its policy says so, or if nobody has seen the namespace being deleted: it may have been lost with a
// part of the datastore. Then the copy stays, too, unless the original can be read.
func (m *Mover) abandon(ctx context.Context, n note, old string, seen bool) error {
	if !seen {
		if err := m.original(ctx, old); err != nil {
			return fmt.Errorf("namespace %s is gone, and its claims with it; volume %s with the copy is kept, since the original cannot be read: %w", n.Namespace, n.Volume, err)
		}
	}
	err := m.cfg.Home.CoreV1().PersistentVolumes().Delete(ctx, n.Volume, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if !seen {
		if err := m.release(ctx, old, corev1.PersistentVolumeReclaimRetain); err != nil {
			return err
		}
		return final{fmt.Errorf("namespace %s is gone, and its claims with it; the data are kept in volume %s: kubectl describe pv %[2]s", n.Namespace, old)}
	}
	if err := m.release(ctx, old, n.Reclaim); err != nil {
		return err
	}
	return final{fmt.Errorf("namespace %s is being deleted, and its claims with it", n.Namespace)}
}

// reserve makes a volume wait for the next claim of the name, if it was bound to the last, and reports whether
// Kubernetes has processed that: a claim made earlier would be checked again only 15 s later. It returns errDeleted for a
// volume that is not there, or is being deleted.
func (m *Mover) reserve(ctx context.Context, name string) (free bool, err error) {
	v, err := m.cfg.Home.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && v.DeletionTimestamp != nil {
		return false, final{fmt.Errorf("volume %s: %w", name, errDeleted)}
	}
	if err != nil {
		return false, err
	}
	if ref := v.Spec.ClaimRef; ref == nil || ref.UID == "" {
		return v.Status.Phase == corev1.VolumeAvailable, nil
	}
	v.Spec.ClaimRef.UID, v.Spec.ClaimRef.ResourceVersion = "", ""
	_, err = m.cfg.Home.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{FieldManager: policy.FieldManager})
	return false, err
}
