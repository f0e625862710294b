package tenancy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/policy"
	"rivulet/offload/volume/tree"
)

// Volumes are the folders of this device's volumes.
type Volumes interface {
	// Node is this device's node.
	Node() string
	// Folder returns where the files of a volume are; an error if they are not here.
	Folder(v *corev1.PersistentVolume) (string, error)
	// Capacity is the size of the disk, in bytes.
	Capacity() (int64, error)
}

// The headers of what is carried.
const (
	// VolumeSizeHeader of a PUT says how many bytes will come.
	VolumeSizeHeader = "Rivulet-Volume-Size"
	// maxCarried is how many volumes of one consumer are read or written at once.
	maxCarried = 4
	// bindPatience is how long a claim that no pod has used may take to get its volume.
	bindPatience = 30 * time.Second
)

// carry returns the handler of one of the routes by which a consumer reads and writes the files of its own
// claims: GET /v1/volumes/{home}/{claim}, the same with /total and /sum, and PUT.
func (t *Tenancy) carry(serve func(ctx context.Context, w http.ResponseWriter, r *http.Request, dir string) error) func(http.ResponseWriter, *http.Request, peer.ID) {
	return func(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
		ctx, leave, why := t.visitors.enter(r.Context(), consumer, carried, 0)
		if leave == nil {
			fail(w, refuse(http.StatusTooManyRequests, "too-many-requests", "try again in a moment", "%s", why))
			return
		}
		defer leave()
		dir, err := t.claimFolder(ctx, r, consumer)
		if err == nil {
			err = serve(ctx, w, r, dir)
		}
		switch {
		case err == nil:
		case errors.Is(err, tree.ErrNoRoom):
			fail(w, refuse(http.StatusInsufficientStorage, "no-room", "free space on "+t.ClusterName()+", or choose another cluster", "%v", err))
		default:
			fail(w, err)
		}
	}
}

// claimFolder finds the folder behind a claim of the consumer's own twin. A claim that
// has no volume yet gets one on this device.
func (t *Tenancy) claimFolder(ctx context.Context, r *http.Request, consumer peer.ID) (string, error) {
	home, err := homeName(r)
	if err != nil {
		return "", err
	}
	name := r.PathValue("claim")
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", refuse(http.StatusBadRequest, "bad-claim", "use the name of a claim", "%q is no name of a claim", name)
	}
	if t.Volumes == nil {
		return "", refuse(http.StatusNotImplemented, "no-volumes", "move the data in a pod", "%s lends no volumes", t.ClusterName())
	}
	ns, err := t.find(ctx, home, consumer)
	if err != nil {
		return "", err
	}
	if ns == nil || ns.DeletionTimestamp != nil {
		return "", refuse(http.StatusNotFound, "no-twin", "offload the namespace first", "namespace %s has no twin here", home)
	}
	claim, err := t.client.CoreV1().PersistentVolumeClaims(ns.Name).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", refuse(http.StatusNotFound, "no-claim", "see: kubectl get pvc", "claim %s is not in %s here", name, ns.Name)
	}
	if err != nil {
		return "", fmt.Errorf("tenancy: claim %s/%s: %w", ns.Name, name, err)
	}
	if err := t.unused(ctx, claim); err != nil {
		return "", err
	}
	if claim, err = t.bound(ctx, claim); err != nil {
		return "", err
	}
	v, err := t.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("tenancy: volume of claim %s/%s: %w", ns.Name, name, err)
	}
	dir, err := t.Volumes.Folder(v)
	if err != nil {
		return "", refuse(http.StatusConflict, "not-a-folder", "move the data in a pod", "%v", err)
	}
	return dir, nil
}

// unused refuses a claim that a pod has: its files would change while they are carried.
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

// bound returns the claim once it has a volume. One that waits for a pod is told, as the
// scheduler would, that it is to be on this device.
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

func volumeTotal(_ context.Context, w http.ResponseWriter, _ *http.Request, dir string) error {
	total, err := tree.Measure(dir)
	if err == nil {
		rpc.Write(w, http.StatusOK, total)
	}
	return err
}

func volumeSum(_ context.Context, w http.ResponseWriter, _ *http.Request, dir string) error {
	sum, err := tree.SumUp(dir)
	if err == nil {
		rpc.Write(w, http.StatusOK, sum)
	}
	return err
}

// readVolume sends the files. What fails in the middle ends the connection, so that
// nobody takes the part for the whole.
func readVolume(ctx context.Context, w http.ResponseWriter, _ *http.Request, dir string) error {
	w.Header().Set("Content-Type", "application/x-tar")
	if err := tree.Pack(dir, untilDone{ctx, w}); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// writeVolume makes the files those that come.
func writeVolume(ctx context.Context, w http.ResponseWriter, r *http.Request, dir string) error {
	size, err := strconv.ParseInt(r.Header.Get(VolumeSizeHeader), 10, 64)
	if err != nil || size < 0 {
		return refuse(http.StatusBadRequest, "bad-size", "upgrade both clusters to the same version", "the size of the volume is %q", r.Header.Get(VolumeSizeHeader))
	}
	if err := tree.Clear(dir); err != nil {
		return err
	}
	if err := tree.Fits(dir, size); err != nil {
		return err
	}
	if err := tree.Unpack(dir, bodyUntilDone{ctx, r.Body}); err != nil {
		return err
	}
	return volumeSum(ctx, w, r, dir)
}

// untilDone ends a long answer with the consumer's being a peer.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u untilDone) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(p)
}

type bodyUntilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u bodyUntilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
