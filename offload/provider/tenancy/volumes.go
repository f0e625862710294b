package tenancy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
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
	"rivulet/offload/policy"
)

// Volumes are the folders of this device's volumes.
type Volumes interface {
	// Node is this device's node.
	Node() string
	// Capacity is the size of the disk, in bytes.
	Capacity() (int64, error)
	// Hold keeps a volume from every pod until release; an error if its files are not here. dir is where they are in
	// that time. held ends with ctx, and when the volume is held again or removed. A volume in use by a pod is
	// filetree.ErrInUse.
	Hold(ctx context.Context, v *corev1.PersistentVolume) (held context.Context, dir string, release func(), err error)
}

const (
	// VolumeSizeHeader is a header of a PUT with the number of bytes that follow.
	VolumeSizeHeader = "Rivulet-Volume-Size"
	// maxCarried is how many volumes of one consumer are read or written at once.
	maxCarried = 4
	// bindPatience is how long a claim without a pod may take to get its volume.
	bindPatience = 30 * time.Second
	// stall is how long a transfer may make no progress.
	stall = 2 * time.Minute
)

// transfer is one request for the files of a claim, whose volume is held in that time.
type transfer struct {
	ctx    context.Context // of the request, the peering and the hold
	w      http.ResponseWriter
	r      *http.Request
	dir    string
	size   int64 // that the claim requests
	bounds filetree.Bounds
}

// serveTransfer returns the handler of one of the routes by which a consumer reads and writes the files of its own
// claims: GET /v1/volumes/{home}/{claim}, the same with /total and /sum, and PUT.
func (t *Tenancy) serveTransfer(serve func(*transfer) (answer any, err error)) func(http.ResponseWriter, *http.Request, peer.ID) {
	return func(w http.ResponseWriter, r *http.Request, consumer peer.ID) {
		ctx, leave, why := t.visitors.enter(r.Context(), consumer, files, 0)
		if leave == nil {
			fail(w, refuse(http.StatusTooManyRequests, "too-many-requests", "try again in a moment", "%s", why))
			return
		}
		defer leave()
		answer, err := t.transfer(ctx, w, r, consumer, serve)
		text, cure := "", ""
		if err != nil {
			text, cure, _ = strings.Cut(err.Error(), "; ")
		}
		switch {
		case err == nil && answer != nil:
			rpc.Write(w, http.StatusOK, answer)
		case err == nil:
		case errors.Is(err, filetree.ErrNoRoom):
			fail(w, refuse(http.StatusInsufficientStorage, "no-room", "free space on "+t.ClusterName()+", or choose another cluster", "%v", err))
		case errors.Is(err, filetree.ErrTooLarge):
			fail(w, refuse(http.StatusRequestEntityTooLarge, "too-large", cure, "%s", text))
		case errors.Is(err, filetree.ErrInUse):
			fail(w, refuse(http.StatusConflict, "in-use", "stop the pod first", "%v", err))
		case errors.Is(err, filetree.ErrBusy):
			fail(w, refuse(http.StatusTooManyRequests, "too-many-requests", cure, "%s", text))
		default:
			fail(w, err)
		}
	}
}

// transfer holds the volume, so that no pod gets it, and serves the request. The volume is released before the answer.
func (t *Tenancy) transfer(ctx context.Context, w http.ResponseWriter, r *http.Request, consumer peer.ID, serve func(*transfer) (any, error)) (any, error) {
	claim, v, err := t.claimVolume(ctx, r, consumer)
	if err != nil {
		return nil, err
	}
	held, dir, release, err := t.Volumes.Hold(ctx, v)
	if errors.Is(err, filetree.ErrInUse) || errors.Is(err, filetree.ErrBusy) || ctx.Err() != nil {
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
	size := claim.Spec.Resources.Requests.Storage().Value()
	bounds, err := filetree.BoundsOf(dir, size)
	if err != nil {
		return nil, err
	}
	defer cutShort(held, w)()
	return serve(&transfer{held, w, r, dir, size, bounds})
}

// cutShort ends blocked reads and writes of the connection with ctx, until stop.
func cutShort(ctx context.Context, w http.ResponseWriter) (stop func()) {
	conn := http.NewResponseController(w)
	all := func(at time.Time) { // a transport without deadlines ends with its context
		_ = conn.SetReadDeadline(at)
		_ = conn.SetWriteDeadline(at)
	}
	unhook := context.AfterFunc(ctx, func() { all(time.Unix(1, 0)) })
	return func() {
		if unhook() {
			all(time.Time{})
		}
	}
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

func volumeTotal(t *transfer) (any, error) { return filetree.Measure(t.ctx, t.dir, t.bounds) }

func volumeSum(t *transfer) (any, error) { return filetree.SumUp(t.ctx, t.dir, t.bounds) }

// readVolume sends the files. A failure in the middle ends the connection, so that the part is not taken for the whole.
func readVolume(t *transfer) (any, error) {
	t.w.Header().Set("Content-Type", "application/x-tar")
	if err := filetree.Pack(t.ctx, t.dir, t.bounds, t); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

// writeVolume replaces the files by the received ones.
func writeVolume(t *transfer) (any, error) {
	size, err := strconv.ParseInt(t.r.Header.Get(VolumeSizeHeader), 10, 64)
	if err != nil || size < 0 {
		return nil, refuse(http.StatusBadRequest, "bad-size", "upgrade both clusters to the same version", "the size of the volume is %q", t.r.Header.Get(VolumeSizeHeader))
	}
	if err := filetree.Clear(t.ctx, t.dir); err != nil {
		return nil, err
	}
	if err := filetree.Fits(t.dir, size); err != nil {
		return nil, err
	}
	// The consumer may fill what its quota counts.
	if t.bounds.Data = t.size; size > t.size {
		return nil, fmt.Errorf("%w: its files are %d MiB, and the claim asks for %d MiB; raise requests.storage of the claim", filetree.ErrTooLarge, size>>20, t.size>>20)
	}
	if err := filetree.Unpack(t.ctx, t.dir, t.bounds, t); err != nil {
		return nil, err
	}
	return volumeSum(t)
}

// Write sends to the consumer, Read receives.
func (t *transfer) Write(p []byte) (int, error) {
	// Before ctx is checked, since cutShort sets its deadline after the end of ctx.
	_ = http.NewResponseController(t.w).SetWriteDeadline(time.Now().Add(stall))
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	return t.w.Write(p)
}

func (t *transfer) Read(p []byte) (int, error) {
	_ = http.NewResponseController(t.w).SetReadDeadline(time.Now().Add(stall))
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	return t.r.Body.Read(p)
}
