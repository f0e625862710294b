package tenancy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/nodeagent/transfer"
	"rivulet/offload/policy"
)

// Volumes are the folders of the volumes of this cluster's nodes.
type Volumes interface {
	// Node is this device's node.
	Node() string
	// Capacity is the size of this device's disk, in bytes.
	Capacity() (int64, error)
	// Hold keeps a volume of this device from every pod until release, one of another node during each use of files; an
	// error if it is no folder of a node. held ends with ctx, and when the volume is held again or removed. A volume in
	// use by a pod is filetree.ErrInUse.
	Hold(ctx context.Context, v *corev1.PersistentVolume) (held context.Context, files filetree.Tree, release func(), err error)
	// NodeOf is the node on whose disk a volume is; "" if it is no folder of a node.
	NodeOf(v *corev1.PersistentVolume) string
	// Usage reads the disk of a node, and what these volumes on it take. Those that are not there, or are held, are left
	// out.
	Usage(ctx context.Context, node string, of []*corev1.PersistentVolume) (filetree.Usage, error)
}

const (
	// maxCarried is how many volumes of one consumer are read or written at once.
	maxCarried = 4
	// bindPatience is how long a claim without a pod may take to get its volume.
	bindPatience = 30 * time.Second
)

// serveTransfer returns the handler of one of the routes by which a consumer reads and writes the files of its own
// claims: those of transfer.Routes, on /v1/volumes/{home}/{claim}.
func (t *Tenancy) serveTransfer(do transfer.Operation) func(http.ResponseWriter, *http.Request, peer.ID) {
	return func(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
		ctx, leave, why := t.visitors.enter(r.Context(), consumer, files, 0)
		if leave == nil {
			fail(w, refuse(http.StatusTooManyRequests, "too-many-requests", "try again in a moment", "%s", why))
			return
		}
		defer leave()
		answer, err := t.transfer(ctx, w, r, consumer, do)
		if err == nil && answer != nil {
			rpc.Write(w, http.StatusOK, answer)
		} else if err != nil {
			fail(w, transferRefusal(err, t.ClusterName()))
		}
	}
}

// transferRefusal gives an error of a transfer its code and cure.
func transferRefusal(err error, cluster string) error {
	status, code, ok := transfer.Code(err)
	text, cure, _ := strings.Cut(err.Error(), "; ")
	switch {
	case errors.Is(err, filetree.ErrNoRoom):
		text, cure = err.Error(), "free space on "+cluster+", or choose another cluster"
	case errors.Is(err, filetree.ErrInUse):
		text, cure = err.Error(), "stop the pod first"
	case errors.Is(err, transfer.ErrSize):
		cure = "upgrade both clusters to the same version"
	case errors.As(err, new(*rpc.Error)): // of a node that does not serve it
		status, code, cure, ok = http.StatusConflict, "not-a-folder", "move the data in a pod", true
	}
	if !ok {
		return err
	}
	return refuse(status, code, cure, "%s", text)
}

// transfer holds the volume, so that no pod gets it, and serves the request. The volume is released before the answer.
func (t *Tenancy) transfer(ctx context.Context, w http.ResponseWriter, r *http.Request, consumer peer.ID, do transfer.Operation) (any, error) {
	claim, v, err := t.claimVolume(ctx, r, consumer)
	if err != nil {
		return nil, err
	}
	held, files, release, err := t.Volumes.Hold(ctx, v)
	if errors.Is(err, filetree.ErrInUse) || errors.Is(err, filetree.ErrBusy) || errors.Is(err, filetree.ErrUnreachable) || ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		return nil, refuse(http.StatusConflict, "not-a-folder", "move the data in a pod", "%v", err)
	}
	defer release()
	// From here on no pod gets it; pods that have it already are found.
	if err := t.unused(held, claim); err != nil {
		return nil, err
	}
	return transfer.Serve(held, w, r, files, do)
}

// claimVolume finds the volume of a claim in the consumer's own twin. A claim without one gets one on this device.
func (t *Tenancy) claimVolume(ctx context.Context, r *http.Request, consumer peer.ID) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	home, err := homeName(r)
	if err != nil {
		return nil, nil, err
	}
	name := r.PathValue("claim")
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, nil, refuse(http.StatusBadRequest, "bad-claim", "use the name of a claim", "%q is no name of a claim", name)
	}
	if t.Volumes == nil {
		return nil, nil, refuse(http.StatusNotImplemented, "no-volumes", "move the data in a pod", "%s lends no volumes", t.ClusterName())
	}
	ns, err := t.find(ctx, home, consumer)
	if err != nil {
		return nil, nil, err
	}
	if ns == nil || ns.DeletionTimestamp != nil {
		return nil, nil, refuse(http.StatusNotFound, "no-twin", "offload the namespace first", "namespace %s has no twin here", home)
	}
	claim, err := t.client.CoreV1().PersistentVolumeClaims(ns.Name).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, refuse(http.StatusNotFound, "no-claim", "see: kubectl get pvc", "claim %s is not in %s here", name, ns.Name)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("tenancy: claim %s/%s: %w", ns.Name, name, err)
	}
	if err := t.unused(ctx, claim); err != nil {
		return nil, nil, err
	}
	if claim, err = t.bound(ctx, claim); err != nil {
		return nil, nil, err
	}
	v, err := t.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("tenancy: volume of claim %s/%s: %w", ns.Name, name, err)
	}
	return claim, v, nil
}

// unused refuses a claim that a pod uses: its files would change during the transfer.
func (t *Tenancy) unused(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pods, err := t.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("tenancy: pods of %s: %w", claim.Namespace, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
				return refuse(http.StatusConflict, "in-use", "stop the pod first", "pod %s uses claim %s", p.Name, claim.Name)
			}
		}
	}
	return nil
}

// bound returns the claim once it has a volume. One that waits for a pod gets this device as its node, as by the
// scheduler.
func (t *Tenancy) bound(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, bindPatience)
	defer cancel()
	api := t.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	for claim.Spec.VolumeName == "" || claim.Status.Phase != corev1.ClaimBound {
		if claim.Spec.VolumeName == "" && claim.Annotations[storageutil.AnnSelectedNode] == "" {
			next := claim.DeepCopy()
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, storageutil.AnnSelectedNode, t.Volumes.Node())
			if _, err := api.Update(ctx, next, metav1.UpdateOptions{FieldManager: policy.FieldManager}); err != nil && !apierrors.IsConflict(err) {
				return nil, fmt.Errorf("tenancy: claim %s/%s: %w", claim.Namespace, claim.Name, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil, refuse(http.StatusConflict, "no-volume", "see on "+t.ClusterName()+": kubectl -n "+claim.Namespace+" describe pvc "+claim.Name,
				"claim %s got no volume within %s", claim.Name, bindPatience)
		case <-time.After(100 * time.Millisecond):
		}
		var err error
		if claim, err = api.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("tenancy: claim: %w", err)
		}
	}
	return claim, nil
}
