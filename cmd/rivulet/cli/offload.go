package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"rivulet/appliance/operate"
	"rivulet/offload/consumer/drain"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
)

func newOffload(c *common) *cobra.Command {
	var when, to, prefer string
	var create bool
	cmd := &cobra.Command{
		Use:   "offload NAMESPACE",
		Short: "let pods of a namespace run on peers (only writes a label)",
		Long:  "Existing pods stay where they are. The cluster's own namespaces kube-* stay at home.",
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			how := policy.Namespace{When: policy.When(when), To: to, Prefer: policy.Preference(prefer)}
			err := c.cluster().CheckOffload(cmd.Context(), args[0], how)
			if errors.As(err, new(operate.UnknownWhen)) || errors.As(err, new(operate.UnknownPreference)) {
				return usagef("--%w; see: rivulet offload --help", err)
			}
			if err == nil && how.When == policy.Services {
				err = confirmHome(cmd, c, args[0])
			}
			if err == nil {
				err = c.cluster().Offload(cmd.Context(), args[0], how, create)
			}
			if errors.As(err, new(operate.NoNamespace)) {
				err = fmt.Errorf("%w, or make it with --create", err)
			}
			if err != nil {
				return err
			}
			if how.When == policy.Services {
				fmt.Fprintf(cmd.OutOrStdout(), "namespace %s: its Services exist on peers, too, for pods of other namespaces; its pods run at home only\n", args[0])
				return warnOfHeld(cmd, c, args[0])
			}
			fmt.Fprintf(cmd.OutOrStdout(), "namespace %s: pods made from now on may run on peers (%s)\n"+
				"a peer gets the Secrets and ConfigMaps that pods there refer to, until the last of these pods is gone\n", args[0], when)
			return nil
		},
	}
	cmd.Flags().StringVar(&when, "when", string(policy.Burst), "burst: home first, away when home is full; remote: only away; any: wherever there is capacity; services: never, but pods of other namespaces reach its Services from there")
	cmd.Flags().StringVar(&to, "to", "", "only to this peer or burst target (burst-NAME)")
	cmd.Flags().StringVar(&prefer, "prefer", "", "cheapest: peers with a low price first (rivulet peer NAME --price); nearest: those with a short round trip first; spread: replicas evenly over home and peers; none: no preference")
	yesFlag(cmd)
	cmd.Flags().BoolVar(&create, "create", false, "create the namespace if it does not exist")
	return cmd
}

func newUnoffload(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unoffload NAMESPACE",
		Short: "keep pods of a namespace at home; those away are replaced",
		Long:  "If pods of the namespace are away, the command lists them and requires confirmation.",
		Args:  oneNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := confirmHome(cmd, c, args[0])
			if err == nil {
				err = c.cluster().Unoffload(cmd.Context(), args[0])
			}
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

// confirmHome asks before the pods of a namespace that are away end there.
func confirmHome(cmd *cobra.Command, c *common, namespace string) error {
	away, err := c.cluster().PodsAway(cmd.Context(), namespace)
	if err != nil {
		return err
	}
	if what := drain.Ends(away); what != "" {
		return confirm(cmd, "keep the pods of namespace "+namespace+" at home", what)
	}
	return nil
}

var oneNamespace = takes(1, "%[1]s takes one namespace, for example: rivulet %[1]s lab; see: rivulet %[1]s --help")

// warnOfHeld names the claims of a namespace whose data are on peers: its pods cannot run at home without them, and the
// data are not moved back.
func warnOfHeld(cmd *cobra.Command, c *common, namespace string) error {
	volumes, err := c.cluster().VolumesAway(cmd.Context())
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
