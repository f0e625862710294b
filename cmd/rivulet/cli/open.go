package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

func newOpen(c *common) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "open NAMESPACE[/SERVICE] --to PEER|group|all",
		Short: "let other clusters reach a namespace's pods, or a Service's (only writes a label)",
		Long:  "A namespace opens all ports of its pods, a Service the ports of its endpoints. The label names a peer by its ID. docs/design/reach.md has what is reachable without it.",
		Args:  oneOpening,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usagef("open needs --to PEER, group or all, for example: rivulet open lab --to b; see: rivulet open --help")
			}
			value := to
			if to != policy.OpenToAll && to != policy.OpenToGroup {
				st, err := api.Get(cmd.Context(), c.dirs.Run)
				if err != nil {
					return err
				}
				if value, err = openTo(st.Peers, to); err != nil {
					return err
				}
			}
			if err := labelOpen(cmd.Context(), c, args[0], value); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is open to %s\n", args[0], to)
			return nil
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "a peer by name or ID, group (peers that proved the group's secret) or all (every peer)")
	return cmd
}

func newClose(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "close NAMESPACE[/SERVICE]",
		Short: "undo rivulet open; connections end",
		Args:  oneOpening,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := labelOpen(cmd.Context(), c, args[0], nil); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is closed\n", args[0])
			return nil
		},
	}
}

func oneOpening(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || strings.Count(args[0], "/") > 1 {
		return usagef("%s takes one namespace or NAMESPACE/SERVICE, for example: rivulet %s lab/web; see: rivulet %s --help", cmd.Name(), cmd.Name(), cmd.Name())
	}
	return nil
}

// openTo returns the ID of the one peer with that name or ID. Clusters that are no peers do not count, because any
// cluster can have a name, and neither does a prefix of an ID, because an ID can be made that begins like another's
// name.
func openTo(all []peer.View, named string) (string, error) {
	found := slices.DeleteFunc(notApart(all), func(p peer.View) bool { return p.Name != named && string(p.ID) != named })
	switch len(found) {
	case 1:
		return string(found[0].ID), nil
	case 0:
		return "", fmt.Errorf("there is no peer %s; see: rivulet peers", named)
	}
	return "", fmt.Errorf("%d peers are called %s; name one by its ID: rivulet peers -o json", len(found), named)
}

// notApart are the peers among the discovered clusters.
func notApart(all []peer.View) []peer.View {
	return slices.DeleteFunc(slices.Clone(all), func(p peer.View) bool { return p.State.Apart() })
}

// labelOpen sets the label of a namespace or Service; nil removes it.
func labelOpen(ctx context.Context, c *common, what string, value any) error {
	client, patch, err := labels(c, map[string]any{policy.OpenLabel: value})
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
