package nodes

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/volumes"
	"rivulet/fabric/peer"
	"rivulet/fabric/rpc"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/nodeagent/filetree"
	"rivulet/offload/nodeagent/transfer"
)

// volumesPath is the route of a worker for the files of its volumes, for its server: transfer.Routes on the name of a
// PersistentVolume. A volume is kept from pods during a request, and no longer than its connection lasts.
const volumesPath = "/v1/node/volumes/"

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
