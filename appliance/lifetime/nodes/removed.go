package nodes

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/addons/volumes"
	virtual "rivulet/offload/consumer/node"
)

// k3s's Secret with the password of a node, by which it knows who has registered it: its type, and the end of its name.
const (
	passwordType   corev1.SecretType = "k3s.cattle.io/node-password"
	passwordSuffix string            = ".node-password.k3s"
)

// forget removes the password by which k3s would refuse another device of that name, and then the Node, with which
// Kubernetes removes the rest and replaces its pods. A virtual node stays.
func forget(ctx context.Context, client kubernetes.Interface, name string, log *slog.Logger) error {
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	gone, theirs := err != nil, err == nil && virtual.Of(n) != ""
	if !gone && !theirs {
		log.Info("a node has left", "node", name)
	}
	err = client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, name+passwordSuffix, metav1.DeleteOptions{})
	if (err == nil || apierrors.IsNotFound(err)) && !gone && !theirs {
		err = client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// dropVolumes removes the objects of volumes on the disk of a worker that somebody removes, which keeps their folders.
// Their claims are Lost, and another device of that name is not asked for the files. A worker whose record is merely
// missing, as after an older backup, keeps them.
func dropVolumes(ctx context.Context, client kubernetes.Interface, node string, log *slog.Logger) error {
	all, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range all.Items {
		v := &all.Items[i]
		if !volumes.IsOn(v, node) {
			continue
		}
		log.Info("a volume has left with its node", "volume", v.Name, "node", node)
		err := client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
		if err == nil { // what waits for the folder, or for the claim, waits for ever
			_, err = client.CoreV1().PersistentVolumes().Patch(ctx, v.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// registered returns the names under which nodes have registered with k3s.
func registered(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
	list, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(passwordType)).String()})
	if err != nil {
		return nil, err
	}
	for _, x := range list.Items {
		if name, ok := strings.CutSuffix(x.Name, passwordSuffix); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// dropOthers removes nodes that have registered with k3s under another name than this node's and its workers'. Volumes of
// such a name stay: a worker makes none, so they are of what this device was called before.
func (s *server) dropOthers(ctx context.Context) error {
	names, err := registered(ctx, s.client)
	errs, workers := []error{err}, s.workers() // after: a worker has its name before it registers
	for _, name := range names {
		if _, known := workers[name]; !known && name != s.NodeName {
			errs = append(errs, forget(ctx, s.client, name, s.Log))
		}
	}
	return errors.Join(errs...)
}
