package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/operate"
	"rivulet/fabric/peer"
)

func newPods(c *common) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "list pods by place: at home, away by peer, and pods of other clusters here",
		Long: "System pods, and pods that have finished or failed, are only counted; -o wide, json and yaml include them.\n" +
			"A pod on a peer that does not answer is Unknown: its last state may be outdated. To find out why a pod does not run: rivulet why POD\n" +
			"A pod of a virtual cluster of this device has the names that it has inside, and whose it is; -o wide has its names here. For these: rivulet why VCLUSTER/NAMESPACE/POD",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows, err := c.cluster().Pods(cmd.Context(), namespace)
			if err != nil {
				return err
			}
			return result(cmd, c, rows, func(out io.Writer, rows []operate.Pod) error {
				return printPods(out, rows, c.output == "wide", time.Now())
			})
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace")
	return withOutput(c, cmd, "wide")
}

func printPods(out io.Writer, rows []operate.Pod, wide bool, now time.Time) error {
	ended := 0
	if !wide {
		rows = slices.DeleteFunc(slices.Clone(rows), func(r operate.Pod) bool {
			if r.Ended && r.Namespace != metav1.NamespaceSystem {
				ended++
			}
			return r.Namespace == metav1.NamespaceSystem || r.Ended
		})
	}
	if ended > 0 {
		defer fmt.Fprintf(out, "%d more have ended, see: rivulet pods -o wide\n", ended)
	}
	head := "PLACE\tON\tNAMESPACE\tPOD\tREADY\tSTATE\tRESTARTS\tAGE"
	if wide {
		head += "\tIN VCLUSTER\tIP\tIMAGES"
	}
	return table(out, "no pods yet; make one: rivulet kubectl create deployment NAME --image=IMAGE", head, rows, func(r operate.Pod) []any {
		namespace, pod, inside := r.Namespace, r.Pod, ""
		if r.Origin != nil {
			inside = r.Origin.Argument()
			if !wide {
				namespace, pod = r.Origin.Owner+" "+r.Origin.Namespace, r.Origin.Pod
			}
		}
		cells := []any{r.Place, dash(r.Node), namespace, pod, fmt.Sprintf("%d/%d", r.Ready, r.Containers), r.State, r.Restarts, since(now, r.Created)}
		if wide {
			cells = append(cells, dash(inside), dash(r.IP), dash(peer.Line(join(r.Images), 1000)))
		}
		return cells
	})
}
