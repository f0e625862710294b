package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/engine"
	"rivulet/offload/volume"
)

// tellHeld names the claims of a namespace whose data are on peers: its pods cannot run
// at home without them, and what is there is not given back.
func tellHeld(cmd *cobra.Command, c *common, namespace string) error {
	cfg, err := engine.RESTConfig(engine.Kubeconfig(c.dirs.State))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	list, err := client.CoreV1().PersistentVolumes().List(cmd.Context(), metav1.ListOptions{LabelSelector: volume.AwayLabel})
	if err != nil {
		return err
	}
	slices.SortFunc(list.Items, volume.ByClaim)
	for i := range list.Items {
		v := &list.Items[i]
		if ref := v.Spec.ClaimRef; ref != nil && ref.Namespace == namespace {
			fmt.Fprintf(cmd.OutOrStdout(), "the data of claim %s are on %s, and pods that use it wait for them; bring them home: rivulet move volume %s/%s home\n",
				ref.Name, volume.Node(v), namespace, ref.Name)
		}
	}
	return nil
}
