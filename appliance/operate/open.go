package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

// Open lets other clusters reach the pods of NAMESPACE, or those of NAMESPACE/SERVICE: a peer by its name or ID,
// policy.OpenToGroup or policy.OpenToAll.
func (c Cluster) Open(ctx context.Context, what, to string) error {
	if to != policy.OpenToAll && to != policy.OpenToGroup {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		if to, err = openTo(st.Peers, to); err != nil {
			return err
		}
	}
	return c.labelOpen(ctx, what, to)
}

// Close undoes Open.
func (c Cluster) Close(ctx context.Context, what string) error { return c.labelOpen(ctx, what, nil) }

// openTo returns the ID of the one peer with that name or ID. Clusters that are no peers do not count, because any
// cluster can have a name, and neither does a prefix of an ID, because an ID can be made that begins like another's
// name.
func openTo(all []peer.View, named string) (string, error) {
	found := slices.DeleteFunc(Peers(all), func(p peer.View) bool { return p.Name != named && string(p.ID) != named })
	switch len(found) {
	case 1:
		return string(found[0].ID), nil
	case 0:
		return "", fmt.Errorf("there is no peer %s; see: rivulet peers", named)
	}
	return "", fmt.Errorf("%d peers are called %s; name one by its ID: rivulet peers -o json", len(found), named)
}

// labelOpen sets the label of a namespace or Service; nil removes it.
func (c Cluster) labelOpen(ctx context.Context, what string, value any) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	patch, err := labels(map[string]any{policy.OpenLabel: value})
	if err != nil {
		return err
	}
	ns, service, one := strings.Cut(what, "/")
	if one {
		_, err = client.CoreV1().Services(ns).Patch(ctx, service, types.MergePatchType, patch, metav1.PatchOptions{})
	} else {
		_, err = client.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no %s; see: rivulet kubectl get services --all-namespaces", what)
	}
	return err
}
