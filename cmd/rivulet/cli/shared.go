package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rivulet/appliance/addons/clusterset"
	"rivulet/appliance/api"
)

func newServices(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "services",
		Short: "list Services shared with peers: from whom, how many answer, what is in conflict",
		Long: "A Service is shared by a ServiceExport of its name and namespace (Multi-Cluster Services API).\n" +
			"Peers with that namespace reach it as NAME.NAMESPACE.svc.clusterset.local. Who takes part: rivulet config explain services.import.\n" +
			"Weights of clusters: rivulet kubectl -n NAMESPACE annotate serviceimport NAME rivulet.dev/weights=home=90,b=10",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := api.Get(cmd.Context(), c.dirs.Run)
			if err != nil {
				return err
			}
			return result(cmd, c, st.ClusterSet, printShared)
		},
	}
	return withOutput(c, cmd)
}

func printShared(out io.Writer, st clusterset.Status) error {
	const none = "no Service is shared; share one: kubectl -n NAMESPACE create -f - <<< '{\"apiVersion\":\"multicluster.x-k8s.io/v1beta1\",\"kind\":\"ServiceExport\",\"metadata\":{\"name\":\"SERVICE\"}}'"
	err := table(out, none, "SERVICE\tTYPE\tEXPORTED\tIMPORTED\tFROM\tDETAIL", st.Services, func(s clusterset.Service) []any {
		yes := map[bool]string{true: "yes", false: "no"}
		var from []string
		for _, x := range s.From {
			mark := ""
			if x.Used {
				mark = "*"
			}
			share := ""
			if s.Weights != "" {
				share = fmt.Sprintf(" %.3g %%", 100*x.Share)
			}
			from = append(from, fmt.Sprintf("%s%s %d/%d%s", cmp.Or(x.Name, "here"), mark, x.Ready, x.Endpoints, share))
		}
		var detail []string
		if len(s.Conflicts) > 0 {
			detail = append(detail, strings.Join(s.Conflicts, ", ")+": "+s.Why)
		}
		if s.Weights != "" {
			detail = append(detail, "weights "+s.Weights)
		}
		if s.WeightsFault != "" {
			detail = append(detail, s.WeightsFault)
		}
		if !s.Imported {
			detail = append(detail, "namespace "+s.Namespace+" is not there, or takes no part")
		}
		return []any{s.Namespace + "/" + s.Name, s.Type, yes[s.Exported], yes[s.Imported], strings.Join(from, ", "), dash(strings.Join(detail, "; "))}
	})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(st.Invalid)) {
		fmt.Fprintf(out, "export %s does not count: %s\n", name, st.Invalid[name])
	}
	for _, m := range st.Members {
		if m.Fault != "" {
			fmt.Fprintf(out, "peer %s: %s\n", m.Name, m.Fault)
		}
	}
	return nil
}
