package nodes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	storageutil "k8s.io/component-helpers/storage/volume"

	"rivulet/appliance/addons/volumes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/foreign"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/nodeagent/transfer"
	"rivulet/offload/provider/tenancy"
)

// volumesPath is the route of a worker for the files of its volumes, for its server: transfer.Routes on the name of a
// PersistentVolume. A volume is kept from pods during a request, and no longer than its connection lasts.
const volumesPath = "/v1/node/volumes/"

// diskPath is the route of a worker for a filetree.Usage with the volumes that its server names.
const diskPath = "/v1/node/disk"

// Volumes are the folders of volumes on all nodes of this cluster: those of workers are read and written by their
// control port. New ones are made on this device.
type Volumes struct {
	*volumes.Local
	worker func(node string) (client *http.Client, base *url.URL, err error)
}

// Volumes may be used while the device is a server.
func (d *Device) Volumes() Volumes { return Volumes{d.Folders, d.connected} }

// connected is workerClient, or filetree.ErrUnreachable for a worker that is not connected.
func (d *Device) connected(node string) (*http.Client, *url.URL, error) {
	f := d.Fabric()
	if f == nil {
		return d.workerClient(node)
	}
	for _, r := range f.Nodes() {
		if l, ok := f.Link(r.ID); r.Node == node && (!ok || l.State != peer.Connected) {
			return nil, nil, fmt.Errorf("%w: %s; see: rivulet nodes", filetree.ErrUnreachable, node)
		}
	}
	return d.workerClient(node)
}

// Files implements move.Local.
func (c Volumes) Files(v *corev1.PersistentVolume) (filetree.Tree, error) {
	if volume.Node(v) == c.Node() {
		return c.Local.Files(v)
	}
	return c.remote(v)
}

// Hold implements tenancy.Volumes.
func (c Volumes) Hold(ctx context.Context, v *corev1.PersistentVolume) (held context.Context, files filetree.Tree, release func(), err error) {
	if volume.Node(v) == c.Node() {
		return c.Local.Hold(ctx, v)
	}
	if files, err = c.remote(v); err != nil {
		return nil, nil, nil, err
	}
	return ctx, files, func() {}, nil
}

// NodeOf implements tenancy.Volumes.
func (c Volumes) NodeOf(v *corev1.PersistentVolume) string {
	if node := volume.Node(v); volumes.IsOn(v, node) {
		return node
	}
	return ""
}

// Usage implements tenancy.Volumes.
func (c Volumes) Usage(ctx context.Context, node string, of []*corev1.PersistentVolume) (u filetree.Usage, err error) {
	if node == c.Node() {
		return c.Local.Usage(ctx, node, of)
	}
	names := make([]string, 0, len(of))
	for _, v := range of {
		names = append(names, v.Name)
	}
	client, base, err := c.worker(node)
	if err == nil {
		err = rpc.Call(ctx, client, http.MethodPost, base.String()+diskPath, names, &u)
	}
	return u, err
}

func (c Volumes) remote(v *corev1.PersistentVolume) (filetree.Tree, error) {
	node := volume.Node(v)
	if !volumes.IsOn(v, node) {
		return nil, fmt.Errorf("volume %s is not a folder of a node; only such can be carried", v.Name)
	}
	client, base, err := c.worker(node)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return transfer.Remote{HTTP: client, URL: base.String() + volumesPath + v.Name, Where: "node " + node}, nil
}

// maxVolume bounds the object of a volume that a worker makes, bytes.
const maxVolume = 64 << 10

// verifyVolume returns why a node may not make the volume in the body of the request, "" if it may: the claim is there,
// has no volume, and belongs on the node. Otherwise the volume would draw the claim's pods, with their Secrets, to the
// node. The body stays readable. An error is one of the API server.
func (s *server) verifyVolume(w http.ResponseWriter, r *http.Request, node string) (refused string, err error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVolume))
	if err != nil {
		return "the volume cannot be read; make it smaller: " + err.Error(), nil //nolint:nilerr // of the request
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	if err := foreign.Body(r.Header.Get("Content-Type"), raw); err != nil { // before a quantity is parsed
		return "the volume: " + err.Error(), nil //nolint:nilerr // of the request
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	v, ok := object.(*corev1.PersistentVolume)
	if err != nil || !ok || v.Spec.ClaimRef == nil {
		return "a worker makes volumes for claims alone; name one in spec.claimRef", nil //nolint:nilerr // of the request
	}
	ref := v.Spec.ClaimRef
	claim, err := s.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(r.Context(), ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && claim.UID != ref.UID {
		return fmt.Sprintf("claim %s/%s is gone; make it again", ref.Namespace, ref.Name), nil
	}
	if err != nil {
		return "", err
	}
	name := storageutil.GetPersistentVolumeClaimClass(claim)
	class, err := s.client.StorageV1().StorageClasses().Get(r.Context(), name, metav1.GetOptions{})
	none := apierrors.IsNotFound(err)
	if err != nil && !none {
		return "", err
	}
	if none || v.Spec.StorageClassName != name || claim.Spec.VolumeName != "" || !volumes.BelongsOn(claim, class, node) {
		return fmt.Sprintf("the volume of claim %s/%s does not belong on node %s; leave it to the node that the scheduler chooses", ref.Namespace, ref.Name, node), nil
	}
	return "", nil
}

// client is one for the cluster's API.
func (d *Device) client() (kubernetes.Interface, error) {
	config, err := d.API()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// servedVolumes are the volumes of this worker, for its server alone.
type servedVolumes struct {
	*Device
	api func() (kubernetes.Interface, error)
}

// serve adds the routes.
func (s servedVolumes) serve(handle func(pattern string, h http.Handler)) {
	for route, do := range transfer.Routes {
		handle(route[0]+" "+volumesPath+"{volume}"+route[1], s.forServer(func(w http.ResponseWriter, r *http.Request) {
			answer, err := s.transfer(w, r, do)
			transfer.Answer(w, answer, err)
		}))
	}
	handle("POST "+diskPath, s.forServer(func(w http.ResponseWriter, r *http.Request) {
		var names []string
		if rpc.Read(w, r, &names) {
			answer, err := s.usage(r.Context(), names)
			transfer.Answer(w, answer, err)
		}
	}))
}

// usage measures volumes until shortly before the server stops waiting.
func (s servedVolumes) usage(ctx context.Context, names []string) (any, error) {
	client, err := s.api()
	if err != nil {
		return nil, err
	}
	var of []*corev1.PersistentVolume
	for _, name := range names {
		v, err := client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			continue // it is not measured
		}
		of = append(of, v)
	}
	ctx, cancel := context.WithTimeout(ctx, tenancy.DiskMeasure)
	defer cancel()
	return s.Folders.Usage(ctx, s.Folders.Node(), of)
}

// transfer holds the volume of the request and serves it.
func (s servedVolumes) transfer(w http.ResponseWriter, r *http.Request, do transfer.Operation) (any, error) {
	client, err := s.api()
	if err != nil {
		return nil, err
	}
	v, err := client.CoreV1().PersistentVolumes().Get(r.Context(), r.PathValue("volume"), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, &rpc.Error{Code: "no-volume", Message: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	held, files, release, err := s.Folders.Hold(r.Context(), v)
	if _, _, ok := transfer.Code(err); err != nil && !ok && r.Context().Err() == nil {
		return nil, &rpc.Error{Code: "no-volume", Message: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	defer release()
	return transfer.Serve(held, w, r, files, do)
}
