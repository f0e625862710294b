package external

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"rivulet/fabric/changes"
	"rivulet/offload/foreign"
	"rivulet/offload/target/external/rewrite"
)

// PartLabel is on objects that belong to the target itself and not to a pod of home.
const PartLabel = "rivulet.dev/part"

// kinds are those of this cluster's objects there, in the order of deletion: controllers of others first.
var kinds = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "secrets"},
}

// object is one of this cluster's objects there.
type object struct {
	metav1.PartialObjectMetadata
	kind schema.GroupVersionResource
}

// list returns this cluster's objects of the selector: those with its labels and with the matching names. A copy by
// somebody else is not this cluster's. Kinds that may not be listed, or do not exist, have none.
func list(ctx context.Context, config *rest.Config, namespace, selector string) ([]object, error) {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	var out []object
	allowed := false
	var denied error
	for _, kind := range kinds {
		err := foreign.Pages(ctx, foreign.Origin{Name: config.Host, Cure: "rivulet burst list"}, metav1.ListOptions{LabelSelector: selector}, client.Resource(kind).Namespace(namespace).List,
			func(l *metav1.PartialObjectMetadataList) {
				for _, item := range l.Items {
					if Ours(&item, kind.Resource) {
						out = append(out, object{item, kind})
					}
				}
			})
		switch {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
			denied = err
			continue
		case err != nil:
			return nil, err
		}
		allowed = true
	}
	if !allowed {
		return nil, denied
	}
	return out, nil
}

// Ours reports whether an object with this cluster's labels was made by it, or by its controllers there.
func Ours(o metav1.Object, resource string) bool {
	cluster := o.GetLabels()[rewrite.HomeLabel]
	if cluster == "" {
		return false
	}
	if o.GetLabels()[PartLabel] != "" {
		return true
	}
	names, home := rewrite.Names{Cluster: cluster}, o.GetAnnotations()[rewrite.NamespaceAnnotation]
	if home == "" {
		return false
	}
	if resource == "pods" {
		return names.Belongs(home, o.GetName())
	}
	return o.GetName() == names.Away(home, o.GetAnnotations()[rewrite.NameAnnotation])
}

const (
	goneEvery = 500 * time.Millisecond
	maxRounds = 1000
)

// clear deletes the objects of list, and returns when they are gone; gone is their number.
func clear(ctx context.Context, config *rest.Config, namespace, selector string) (gone int, err error) {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	seen := map[string]bool{}
	for range maxRounds {
		found, err := list(ctx, config, namespace, selector)
		if err != nil {
			return len(seen), err
		}
		if len(found) == 0 {
			return len(seen), nil
		}
		var errs []error
		for _, o := range found {
			seen[string(o.UID)] = true
			if o.DeletionTimestamp != nil {
				continue
			}
			err := client.Resource(o.kind).Namespace(namespace).Delete(ctx, o.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: ptr.To(o.UID)}, PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
			switch {
			case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
			case apierrors.IsForbidden(err) && controlled(&o):
				// Deleted with its owner.
			default:
				errs = append(errs, err)
			}
		}
		if err := errors.Join(errs...); err != nil {
			return len(seen), err
		}
		if !changes.Wait(ctx, goneEvery) {
			return len(seen), fmt.Errorf("%d objects are still going: %w", len(found), ctx.Err())
		}
	}
	return len(seen), errors.New("objects are made again as fast as they are deleted; is the cluster that they are of still running?")
}

func controlled(o *object) bool { return metav1.GetControllerOfNoCopy(o) != nil }

// Homes are the cluster IDs with objects in the namespace.
func Homes(ctx context.Context, c Credential, namespace string) ([]string, error) {
	config, err := c.REST()
	if err != nil {
		return nil, err
	}
	found, err := list(ctx, config, namespace, rewrite.HomeLabel)
	if err != nil {
		return nil, explain(err, namespace)
	}
	var ids []string
	for _, o := range found {
		ids = append(ids, o.GetLabels()[rewrite.HomeLabel])
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Purge deletes all objects of the cluster in the namespace, wherever it is called, and returns their number.
func Purge(ctx context.Context, c Credential, namespace, cluster string) (int, error) {
	if cluster == "" || strings.ContainsAny(cluster, "=,! ()") {
		return 0, fmt.Errorf("burst: %.60q is no ID of a cluster", cluster)
	}
	config, err := c.REST()
	if err != nil {
		return 0, err
	}
	n, err := clear(ctx, config, namespace, rewrite.HomeLabel+"="+cluster)
	if err != nil {
		return n, explain(err, namespace)
	}
	return n, nil
}
