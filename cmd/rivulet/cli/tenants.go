package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/policy"
)

func newTenants(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tenants",
		Aliases: []string{"guests"},
		Short:   "list what other clusters have here, also after they have left",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := api.Get(cmd.Context(), c.dirs.Run)
			if err != nil {
				return err
			}
			return result(cmd, c, st.Consumers, func(out io.Writer, all []offload.Consumer) error { return printTenants(out, all, c.output == "wide") })
		},
	}
	cmd.AddCommand(newTenantsRemove(c))
	return withOutput(c, cmd, "wide")
}

func newTenantsRemove(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME|ID",
		Short: "delete the leftovers of a cluster that is silent or not a peer",
		Long: "Its namespaces here are deleted with their content. A connected peer is refused; for that:\nrivulet peer NAME --provide=off\n" +
			"A peer's virtual cluster that the peer does not list any more (PEER: unlisted) has its own ID.",
		Args: oneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := api.Get(cmd.Context(), c.dirs.Run)
			if err != nil {
				return err
			}
			tenant, err := findTenant(st.Consumers, args[0])
			if err != nil {
				return err
			}
			if tenant.Peer && tenant.Silent == 0 && !tenant.Unlisted {
				return fmt.Errorf("%s is a peer and is heard, it would have them again at once; to lend it nothing more: rivulet peer %s --provide=off", tenantName(tenant), tenantName(tenant))
			}
			if err := confirm(cmd, fmt.Sprintf("delete %d namespaces of %s and the %d pods in them", len(tenant.Twins), tenantName(tenant), tenant.Pods), ""); err != nil {
				return err
			}
			n, err := removeTenant(cmd.Context(), c, string(tenant.ID))
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%d namespaces of %s are being deleted\n", n, tenantName(tenant))
			}
			return err
		},
	}
	yesFlag(cmd)
	return cmd
}

func removeTenant(ctx context.Context, c *common, id string) (n int, err error) {
	client, err := c.client()
	if err != nil {
		return 0, err
	}
	namespaces := client.CoreV1().Namespaces()
	list, err := namespaces.List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + id})
	if err != nil {
		return 0, fmt.Errorf("what it has here: %w; see: rivulet status", err)
	}
	for _, ns := range list.Items {
		err := namespaces.Delete(ctx, ns.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ns.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return n, fmt.Errorf("delete namespace %s: %w; run it again", ns.Name, err)
		}
		n++
	}
	return n, nil
}

func findTenant(tenants []offload.Consumer, name string) (offload.Consumer, error) {
	found := peer.Meant(tenants, name, func(g offload.Consumer) (peer.ID, []string) { return g.ID, []string{g.Name} })
	switch len(found) {
	case 0:
		return offload.Consumer{}, fmt.Errorf("no cluster %s has anything here; see: rivulet tenants", name)
	case 1:
		return found[0], nil
	}
	return offload.Consumer{}, fmt.Errorf("%s may be %s or %s; use the ID", name, found[0].ID.Short(), found[1].ID.Short())
}

func tenantName(g offload.Consumer) string {
	if g.Name != "" {
		return g.Name
	}
	return g.ID.Short()
}

func printTenants(out io.Writer, tenants []offload.Consumer, wide bool) error {
	const head = "CLUSTER\tID\tPEER\tPODS\tNAMESPACES\tSILENT FOR\tDELETED IN"
	return table(out, "no other cluster has anything here", head, tenants, func(g offload.Consumer) []any {
		id, silent, left, isPeer := g.ID.Short(), "-", "-", fmt.Sprint(g.Peer)
		if wide {
			id = string(g.ID)
		}
		if g.Silent > 0 {
			silent, left = g.Silent.Round(time.Minute).String(), g.Left.Round(time.Minute).String()
		}
		if g.Unlisted {
			isPeer = "unlisted"
		}
		return []any{dash(g.Name), id, isPeer, g.Pods, dash(join(slices.Sorted(maps.Values(g.Twins)))), silent, left}
	})
}
