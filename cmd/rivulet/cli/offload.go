package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/offload/consumer/drain"
	"rivulet/offload/policy"
)

func newOffload(c *common) *cobra.Command {
	var when, to string
	var create bool
	cmd := &cobra.Command{
		Use:   "offload NAMESPACE",
		Short: "let pods of a namespace run on peers (only writes a label)",
		Long:  "Existing pods stay where they are. The cluster's own namespaces kube-* stay at home.",
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch policy.When(when) {
			case policy.Burst, policy.Remote, policy.Any:
			default:
				return usagef("--when %s is not known; use burst (home first), remote (only away) or any; see: rivulet offload --help", when)
			}
			if policy.System(args[0]) {
				return fmt.Errorf("namespace %s is the cluster's own and stays at home; offload one of your own, for example: rivulet offload lab --create", args[0])
			}
			change := map[string]any{policy.NamespaceLabel: when, policy.NamespaceToLabel: nil}
			if to != "" {
				if err := isTarget(cmd, c, to); err != nil {
					return err
				}
				change[policy.NamespaceToLabel] = to
			}
			if err := label(cmd, c, args[0], change, create); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "namespace %s: pods made from now on may run on peers (%s)\n"+
				"a peer gets the Secrets and ConfigMaps that pods there refer to, until the last of these pods is gone\n", args[0], when)
			return nil
		},
	}
	cmd.Flags().StringVar(&when, "when", string(policy.Burst), "burst: home first, away when home is full; remote: only away; any: wherever there is capacity")
	cmd.Flags().StringVar(&to, "to", "", "only to this peer or burst target (burst-NAME)")
	cmd.Flags().BoolVar(&create, "create", false, "create the namespace if it does not exist")
	return cmd
}

// isTarget returns an error unless pods can be sent to a target of that name, now or once it answers.
func isTarget(cmd *cobra.Command, c *common, name string) error {
	st, err := api.Get(cmd.Context(), c.dirs.Run)
	if err != nil {
		return err
	}
	var known []string
	for _, n := range st.VirtualNodes {
		known = append(known, n.Target)
	}
	for _, p := range st.Peers {
		if !p.State.Apart() {
			known = append(known, p.Name)
		}
	}
	slices.Sort(known)
	if known = slices.Compact(known); slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("there is no peer or burst target %s, only: %s; see: rivulet peers, rivulet burst list", name, dash(strings.Join(known, ", ")))
}

func newUnoffload(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unoffload NAMESPACE",
		Short: "keep pods of a namespace at home; those away are replaced",
		Long:  "If pods of the namespace are away, the command lists them and requires confirmation.",
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			away, err := c.podsAway(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if what := drain.Ends(away); what != "" {
				if err := confirm(cmd, "pods of namespace "+args[0]+" run at home only"+what); err != nil {
					return err
				}
			}
			err = label(cmd, c, args[0], map[string]any{policy.NamespaceLabel: nil, policy.NamespaceToLabel: nil}, false)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "namespace %s: pods run at home only\n", args[0])
				err = warnOfHeld(cmd, c, args[0])
			}
			return err
		},
	}
	yesFlag(cmd)
	return cmd
}

// podsAway are the pods of a namespace that run on virtual nodes.
func (c *common) podsAway(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w; see: rivulet status", err)
	}
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	pods, err := drain.Pods(ctx, client, names)
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Namespace != namespace }), err
}

var oneNamespace = takes(1, "%[1]s takes one namespace, for example: rivulet %[1]s lab; see: rivulet %[1]s --help")

// label patches the namespace's labels; nil removes one. With create it creates a missing namespace.
func label(cmd *cobra.Command, c *common, ns string, change map[string]any, create bool) error {
	client, patch, err := labels(c, change)
	if err != nil {
		return err
	}
	namespaces := client.CoreV1().Namespaces()
	_, err = namespaces.Patch(cmd.Context(), ns, types.MergePatchType, patch, metav1.PatchOptions{})
	if create && apierrors.IsNotFound(err) {
		if _, err = namespaces.Create(cmd.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err == nil {
			_, err = namespaces.Patch(cmd.Context(), ns, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no namespace %s; see: rivulet kubectl get namespaces%s", ns, orCreate(cmd))
	}
	return err
}

// labels returns a client of this device's API server, and the merge patch for labels of an object; nil removes one.
func labels(c *common, change map[string]any) (kubernetes.Interface, []byte, error) {
	client, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": change}})
	return client, patch, err
}

// orCreate is an additional cure, for verbs with --create.
func orCreate(cmd *cobra.Command) string {
	if cmd.Flags().Lookup("create") == nil {
		return ""
	}
	return ", or make it with --create"
}
