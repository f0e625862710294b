package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/operate"
	"rivulet/offload/consumer/explain"
)

func newWhy(c *common) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "why POD | why VCLUSTER/NAMESPACE/POD | why KIND/NAME",
		Short: "explain why something does not run, is not reachable, or runs badly, with a cure",
		Long: "POD is a name, or NAMESPACE/NAME; a name without a namespace is searched in all namespaces, and among the other kinds if no pod has it.\n" +
			"A pod of a virtual cluster of this device is named as inside: VCLUSTER/NAMESPACE/POD.\n" +
			"KIND is deployment, statefulset, daemonset, replicaset, job, cronjob, service, pvc, ingress, namespace, peer or node, or one of kubectl's short words for it.\n" +
			"The first line is the reason to start with.",
		Args: takes(1, "why takes one pod, or one KIND/NAME; see: rivulet pods, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := c.cluster().Why(cmd.Context(), namespace, args[0], &operate.Disk{Env: here(c), Unused: c.unused})
			if err != nil {
				return err
			}
			return result(cmd, c, answer, printAnswer)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the object")
	return withOutput(c, cmd)
}

func printAnswer(out io.Writer, a explain.Answer) error {
	what, here := a.Namespace+"/"+a.Name, ""
	if a.Origin != "" {
		what, here = a.Origin, ", here as "+what
	}
	switch {
	case a.Kind != "Pod" && a.Namespace == "":
		what = a.Kind + " " + a.Name
	case a.Kind != "Pod":
		what = a.Kind + " " + what
	case a.Node != "" && a.Away:
		a.State += ", away, on " + a.Node
	case a.Node != "":
		a.State += ", on " + a.Node
	default:
		a.State += ", on no node"
	}
	fmt.Fprintln(out, strings.TrimRight(what+"  "+a.State+here, " "))
	for _, r := range a.Reasons {
		fmt.Fprintf(out, "  %s\n", r.What)
		if r.Cure != "" {
			fmt.Fprintf(out, "    cure: %s\n", r.Cure)
		}
	}
	return nil
}
