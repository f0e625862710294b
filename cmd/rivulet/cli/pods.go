package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/appliance/operate"
)

func newPods(c *common) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "list pods by place: at home, away by peer, and pods of other clusters here",
		Long: "System pods, and pods that have finished or failed, are only counted; -o wide, json and yaml include them.\n" +
			"A pod on a peer that does not answer is Unknown: its last state may be outdated. To find out why a pod does not run: rivulet why POD",
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
		head += "\tIP\tIMAGES"
	}
	return table(out, "no pods yet; make one: rivulet kubectl create deployment NAME --image=IMAGE", head, rows, func(r operate.Pod) []any {
		cells := []any{r.Place, dash(r.Node), r.Namespace, r.Pod, fmt.Sprintf("%d/%d", r.Ready, r.Containers), r.State, r.Restarts, since(now, r.Created)}
		if wide {
			cells = append(cells, dash(r.IP), dash(join(r.Images)))
		}
		return cells
	})
}
