package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/offload/consumer/explain"
	"rivulet/offload/consumer/pod/translate"
	"rivulet/offload/policy"
)

// podRow is one line of `rivulet pods`.
type podRow struct {
	Place      string    `json:"place"` // home, away, tenant; waiting: no node yet
	Node       string    `json:"node,omitempty"`
	Namespace  string    `json:"namespace"`
	Pod        string    `json:"pod"`
	State      string    `json:"state"`
	Ready      int       `json:"ready"`
	Containers int       `json:"containers"`
	Restarts   int32     `json:"restarts"`
	Created    time.Time `json:"created"`
	IP         string    `json:"ip,omitempty"`
	Images     []string  `json:"images"`

	ended bool // finished, or failed for good
}

func newPods(c *common) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "list pods by place: at home, away by peer, and pods of other clusters here",
		Long: "System pods, and pods that have finished or failed, are only counted; -o wide, json and yaml include them.\n" +
			"A pod on a peer that does not answer is Unknown: its last state may be outdated. To find out why a pod does not run: rivulet why POD",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rows, err := c.podRows(cmd.Context(), namespace)
			if err != nil {
				return err
			}
			return result(cmd, c, rows, func(out io.Writer, rows []podRow) error { return printPods(out, rows, c.output == "wide", time.Now()) })
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only this namespace")
	return withOutput(c, cmd, "wide")
}

func (c *common) podRows(ctx context.Context, namespace string) ([]podRow, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("nodes: %w; see: rivulet status", err)
	}
	pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("pods: %w; see: rivulet status", err)
	}
	return rowsOf(pods.Items, nodes.Items), nil
}

// places are in the order of the output.
var places = []string{"waiting", "home", "away", "tenant"}

func rowsOf(pods []corev1.Pod, nodes []corev1.Node) []podRow {
	virtual, silent := map[string]string{}, map[string]bool{}
	for i := range nodes {
		if n := &nodes[i]; n.Labels[policy.VirtualNodeLabel] != "" {
			virtual[n.Name], silent[n.Name] = cmp.Or(n.Labels[policy.TargetLabel], n.Name), !ready(n)
		}
	}
	rows := make([]podRow, 0, len(pods))
	for i := range pods {
		p := &pods[i]
		r := podRow{Place: "home", Node: p.Spec.NodeName, Namespace: p.Namespace, Pod: p.Name, State: explain.State(p), Containers: len(p.Spec.Containers),
			Created: p.CreationTimestamp.Time, IP: p.Status.PodIP}
		target, away := virtual[p.Spec.NodeName]
		if away {
			r.Node = target
		}
		switch {
		case p.Labels[policy.OriginLabel] != "":
			r.Place = "tenant"
		case p.Spec.NodeName == "", p.Status.Reason == translate.ReasonRefused: // it is nowhere
			r.Place = "waiting"
		case away:
			r.Place = "away"
		}
		r.ended = p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if r.Place == "away" && silent[p.Spec.NodeName] && !r.ended && p.DeletionTimestamp == nil {
			r.State = string(corev1.PodUnknown)
		}
		for _, s := range p.Status.ContainerStatuses {
			r.Restarts += s.RestartCount
			if s.Ready {
				r.Ready++
			}
		}
		for i := range p.Spec.Containers {
			r.Images = append(r.Images, p.Spec.Containers[i].Image)
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(x, y podRow) int {
		return cmp.Or(slices.Index(places, x.Place)-slices.Index(places, y.Place), cmp.Compare(x.Node, y.Node), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod))
	})
	return rows
}

func printPods(out io.Writer, rows []podRow, wide bool, now time.Time) error {
	ended := 0
	if !wide {
		rows = slices.DeleteFunc(slices.Clone(rows), func(r podRow) bool {
			if r.ended && r.Namespace != metav1.NamespaceSystem {
				ended++
			}
			return r.Namespace == metav1.NamespaceSystem || r.ended
		})
	}
	if ended > 0 {
		defer fmt.Fprintf(out, "%d more have ended, see: rivulet pods -o wide\n", ended)
	}
	head := "PLACE\tON\tNAMESPACE\tPOD\tREADY\tSTATE\tRESTARTS\tAGE"
	if wide {
		head += "\tIP\tIMAGES"
	}
	return table(out, "no pods yet; make one: rivulet kubectl create deployment NAME --image=IMAGE", head, rows, func(r podRow) []any {
		cells := []any{r.Place, dash(r.Node), r.Namespace, r.Pod, fmt.Sprintf("%d/%d", r.Ready, r.Containers), r.State, r.Restarts, since(now, r.Created)}
		if wide {
			cells = append(cells, dash(r.IP), dash(join(r.Images)))
		}
		return cells
	})
}
