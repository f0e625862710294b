package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/consumer/explain"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/policy"
)

func newWhy(c *common) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "why POD | why KIND/NAME",
		Short: "explain why something does not run, is not reachable, or runs badly, with a cure",
		Long: "POD is a name, or NAMESPACE/NAME; a name without a namespace is searched in all namespaces, and among the other kinds if no pod has it.\n" +
			"KIND is deployment, statefulset, daemonset, replicaset, job, cronjob, service, pvc, ingress, namespace, peer or node, or one of kubectl's short words for it.\n" +
			"The first line is the reason to start with.",
		Args: takes(1, "why takes one pod, or one KIND/NAME; see: rivulet pods, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := c.gatherer(cmd.Context())
			if err != nil {
				return err
			}
			object, err := g.find(namespace, args[0])
			if err != nil {
				return err
			}
			facts, err := g.facts(object)
			if err != nil {
				return err
			}
			return result(cmd, c, explain.Explain(facts), printAnswer)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the object")
	return withOutput(c, cmd)
}

func printAnswer(out io.Writer, a explain.Answer) error {
	what := a.Namespace + "/" + a.Name
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
	fmt.Fprintln(out, strings.TrimRight(what+"  "+a.State, " "))
	for _, r := range a.Reasons {
		fmt.Fprintf(out, "  %s\n", r.What)
		if r.Cure != "" {
			fmt.Fprintf(out, "    cure: %s\n", r.Cure)
		}
	}
	return nil
}

// leftOut are endpoints of the namespace's Services that are reachable at home only.
func leftOut(ctx context.Context, client kubernetes.Interface, namespace, node string, pods []corev1.Pod) (out []reflect.LeftOut, err error) {
	services, err1 := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	endpoints, err2 := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	namespaces, err3 := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.NamespaceLabel})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("%w; see: rivulet status", err)
	}
	reached, offloaded := map[netip.Addr]bool{}, map[string]bool{}
	for i := range pods {
		if pods[i].Status.Phase == corev1.PodSucceeded || pods[i].Status.Phase == corev1.PodFailed {
			continue
		}
		if a, err := netip.ParseAddr(pods[i].Status.PodIP); err == nil && !pods[i].Spec.HostNetwork {
			reached[a] = true
		}
	}
	for i := range namespaces.Items {
		n := &namespaces.Items[i]
		ns, _ := policy.Parse(n)
		offloaded[n.Name] = ns.Allows(node)
	}
	for i := range services.Items {
		out = append(out, reflect.LeftOutOfAlias(ctx, &services.Items[i], func(n string) bool { return offloaded[n] }, reflect.HomeLookup))
	}
	for i := range endpoints.Items {
		out = append(out, reflect.LeftOutOfSlice(&endpoints.Items[i], func(a netip.Addr) bool { return reached[a] }))
	}
	return slices.DeleteFunc(out, func(l reflect.LeftOut) bool { return l.What == "" }), nil
}

// usedCPU is the value of the metrics API, in thousandths of a core; -1 if there is none.
func usedCPU(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) int64 {
	raw, err := client.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces", p.Namespace, "pods", p.Name).DoRaw(ctx)
	var m struct {
		Containers []struct{ Usage map[string]resource.Quantity }
	}
	if err != nil || json.Unmarshal(raw, &m) != nil {
		return -1
	}
	n := int64(0)
	for _, c := range m.Containers {
		q := c.Usage["cpu"]
		n += q.MilliValue()
	}
	return n
}
