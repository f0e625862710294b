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
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload/consumer/explain"
	"rivulet/offload/consumer/reflect"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

func newWhy(c *common) *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:   "why POD",
		Short: "why a pod does not run, or runs badly, and what to do about it",
		Long:  "POD is a name, or NAMESPACE/NAME; a name without a namespace is looked for in all of them. The first line is the reason to begin with.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("why takes one pod; see: rivulet pods")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			p, err := findPod(cmd.Context(), client, namespace, args[0])
			if err != nil {
				return err
			}
			facts, err := c.factsOf(cmd.Context(), client, p)
			if err != nil {
				return err
			}
			answer := explain.Explain(facts)
			if c.forProgram() {
				return c.print(cmd.OutOrStdout(), answer)
			}
			return printAnswer(cmd.OutOrStdout(), answer)
		},
		ValidArgsFunction: c.completePods,
	}
	outputFlag(cmd, c)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "of the pod")
	c.completeNamespaces(cmd, "namespace")
	return cmd
}

func printAnswer(out io.Writer, a explain.Answer) error {
	where := "on no node"
	switch {
	case a.Node != "" && a.Away:
		where = "away, on " + a.Node
	case a.Node != "":
		where = "on " + a.Node
	}
	fmt.Fprintf(out, "%s/%s  %s, %s\n", a.Namespace, a.Pod, a.State, where)
	for _, r := range a.Reasons {
		fmt.Fprintf(out, "  %s\n", r.What)
		if r.Cure != "" {
			fmt.Fprintf(out, "    cure: %s\n", r.Cure)
		}
	}
	return nil
}

// findPod finds one pod by name, in any namespace if none is given.
func findPod(ctx context.Context, client kubernetes.Interface, namespace, name string) (*corev1.Pod, error) {
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		namespace, name = ns, rest
	}
	if namespace != "" {
		p, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no pod %s in namespace %s; see: rivulet pods", name, namespace)
		}
		return p, err
	}
	list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return nil, fmt.Errorf("pods: %w; see: rivulet status", err)
	}
	switch len(list.Items) {
	case 0:
		return nil, fmt.Errorf("there is no pod %s; see: rivulet pods", name)
	case 1:
		return &list.Items[0], nil
	}
	return nil, fmt.Errorf("%d namespaces have a pod %s; say which: rivulet why %s/%s", len(list.Items), name, list.Items[0].Namespace, name)
}

// factsOf asks home's API server, and the supervisor, which need not run.
func (c *common) factsOf(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (explain.Facts, error) {
	f := explain.Facts{Pod: p, Now: time.Now(), UsedCPU: -1, Links: map[string]explain.LinkState{}}
	nodes, err1 := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	pods, err2 := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	events, err3 := client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
	if err := errors.Join(err1, err2, err3); err != nil {
		return f, fmt.Errorf("%w; see: rivulet status", err)
	}
	f.Nodes, f.Pods, f.Events = nodes.Items, pods.Items, events.Items
	f.Namespace, _ = client.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
	if p.Spec.NodeName == "" {
		var err error
		if f.Missing, f.Volumes, err = claimsOf(ctx, client, p); err != nil {
			return f, err
		}
	} else {
		f.UsedCPU = usedCPU(ctx, client, p)
	}
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Name == p.Spec.NodeName && n.Labels[policy.KindLabel] == string(target.Peer) {
			var err error
			if f.LeftOut, err = leftOut(ctx, client, p.Namespace, n.Name, f.Pods); err != nil {
				return f, err
			}
		}
	}
	if st, err := api.Get(ctx, c.dirs.Run); err == nil {
		f.Running = true
		for _, h := range st.Health {
			f.Problems = append(f.Problems, explain.Problem{Code: h.Code, Subject: h.Subject, Text: h.Text, Cure: h.Cure})
		}
		for _, v := range st.PeerList() {
			link := explain.LinkState{Connected: v.State == peer.Connected, Why: v.Reason, RTT: v.RTT}
			if v.Way != nil {
				link.Path = v.Way.Path
			}
			f.Links[string(v.ID)] = link
		}
	}
	return f, nil
}

// leftOut is what Services of the namespace lead to at home only.
func leftOut(ctx context.Context, client kubernetes.Interface, namespace, node string, pods []corev1.Pod) (out []reflect.LeftOut, err error) {
	services, err1 := client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	endpoints, err2 := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	namespaces, err3 := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.NamespaceLabel})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("%w; see: rivulet status", err)
	}
	reached, offloaded := map[netip.Addr]bool{}, map[string]bool{}
	for i := range pods {
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

// claimsOf are the claims of the pod that wait for something else than their first pod, and the volumes of those that are bound.
func claimsOf(ctx context.Context, client kubernetes.Interface, p *corev1.Pod) (missing []string, bound []corev1.PersistentVolume, err error) {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, v.PersistentVolumeClaim.ClaimName)
			continue
		case err != nil:
			return nil, nil, err
		case claim.Status.Phase == corev1.ClaimBound:
			if v, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{}); err == nil {
				bound = append(bound, *v)
			}
			continue
		}
		if name := claim.Spec.StorageClassName; name != nil && *name != "" {
			class, err := client.StorageV1().StorageClasses().Get(ctx, *name, metav1.GetOptions{})
			if err == nil && class.VolumeBindingMode != nil && string(*class.VolumeBindingMode) == "WaitForFirstConsumer" {
				continue // it is bound when the pod has a node
			}
		}
		missing = append(missing, claim.Name)
	}
	return missing, bound, nil
}

// usedCPU is what the metrics API says, in thousandths of a core; -1 if nothing.
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
