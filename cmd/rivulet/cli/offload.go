package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/engine"
	"rivulet/offload/policy"
)

func newOffload(c *common) *cobra.Command {
	var when, to string
	cmd := &cobra.Command{
		Use:   "offload NAMESPACE",
		Short: "let pods of a namespace run on peers (writes a label, nothing else)",
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch policy.When(when) {
			case policy.Burst, policy.Remote, policy.Any:
			default:
				return usagef("--when %s is not known; use burst (home first), remote (only away) or any; see: rivulet offload --help", when)
			}
			labels := map[string]any{policy.NamespaceLabel: when, policy.NamespaceToLabel: nil}
			if to != "" {
				labels[policy.NamespaceToLabel] = to
			}
			if err := label(cmd, c, args[0], labels, true); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "namespace %s: pods made from now on may run on peers (%s)\n", args[0], when)
			return nil
		},
	}
	cmd.Flags().StringVar(&when, "when", string(policy.Burst), "burst: home first, away when home is full; remote: only away; any: wherever there is room")
	cmd.Flags().StringVar(&to, "to", "", "only to this peer")
	return cmd
}

func newUnoffload(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "unoffload NAMESPACE",
		Short: "keep pods of a namespace at home again; those away are replaced",
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := label(cmd, c, args[0], map[string]any{policy.NamespaceLabel: nil, policy.NamespaceToLabel: nil}, false)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "namespace %s: pods run at home only\n", args[0])
				err = tellHeld(cmd, c, args[0])
			}
			return err
		},
	}
}

func oneNamespace(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("%s takes one namespace, for example: rivulet %s lab; see: rivulet %s --help", cmd.Name(), cmd.Name(), cmd.Name())
	}
	return nil
}

// label patches the namespace's labels; nil removes one. With create it makes
// the namespace if there is none.
func label(cmd *cobra.Command, c *common, ns string, labels map[string]any, create bool) error {
	cfg, err := engine.RESTConfig(engine.Kubeconfig(c.dirs.State))
	if err != nil {
		return fmt.Errorf("rivulet is not running here, or you are not root (%w); see: rivulet status", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
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
		return fmt.Errorf("there is no namespace %s; see: rivulet kubectl get namespaces", ns)
	}
	return err
}
