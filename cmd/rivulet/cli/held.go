package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
)

// tellHeld names the claims of a namespace whose data are on peers: its pods cannot run
// at home without them, and what is there is not given back.
func tellHeld(cmd *cobra.Command, c *common, namespace string) error {
	volumes, err := volumesAway(cmd.Context(), c)
	if err != nil {
		return err
	}
	for i := range volumes {
		if ref := volumes[i].Spec.ClaimRef; ref.Namespace == namespace {
			fmt.Fprintf(cmd.OutOrStdout(), "the data of claim %s are on %s, and pods that use it wait for them; bring them home: rivulet move volume %s/%s home\n",
				ref.Name, volume.Node(&volumes[i]), namespace, ref.Name)
		}
	}
	return nil
}

// keepsData returns an error that names the claims whose data are on the peer, or one where that cannot be told.
func keepsData(ctx context.Context, c *common, peer string) error {
	volumes, err := volumesAway(ctx, c)
	if err != nil {
		return notTold(peer, err)
	}
	var names []string
	for i := range volumes {
		if v := &volumes[i]; volume.Node(v) == peer || strings.HasPrefix(v.Labels[volume.AwayLabel], peer) {
			names = append(names, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("the data of %s are on %s and would be lost; bring them home (rivulet move volume %s home), or add --force", strings.Join(names, ", "), peer, names[0])
}

// notTold says that nobody knows what an end would take with it. Before the first start of the engine there is nothing.
func notTold(peer string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("whether data would be lost with %s cannot be told: %w; try again when the API server answers (rivulet status), or add --force", peer, err)
}

// tenantsData returns an error that names the claims which the peer, by its name or ID, has
// data in here, which end with the peering, or one where that cannot be told.
func tenantsData(ctx context.Context, c *common, name string) error {
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return err
	}
	tenant, err := findTenant(st.Consumers, name)
	if err != nil {
		return nil //nolint:nilerr // it is no tenant
	}
	client, err := c.client()
	if err != nil {
		return notTold(name, err)
	}
	twins, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + string(tenant.ID)})
	if err != nil {
		return notTold(name, err)
	}
	var names []string
	for _, twin := range twins.Items {
		claims, err := client.CoreV1().PersistentVolumeClaims(twin.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return notTold(name, err)
		}
		for _, claim := range claims.Items {
			names = append(names, twin.Name+"/"+claim.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%s has data here, in %s, and would lose them; have them brought home first (there: rivulet move volume NAMESPACE/CLAIM home), or add --force",
		tenantName(tenant), strings.Join(names, ", "))
}

// volumesAway are those of claims whose data are on peers, in the order of the claims.
func volumesAway(ctx context.Context, c *common) ([]corev1.PersistentVolume, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: volume.AwayLabel})
	if err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(list.Items, func(v corev1.PersistentVolume) bool { return v.Spec.ClaimRef == nil })
	slices.SortFunc(out, volume.ByClaim)
	return out, nil
}
