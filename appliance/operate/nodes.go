package operate

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/offload/consumer/drain"
)

// VirtualNodes finds the virtual nodes of a peer or burst target, or one virtual node by its name. It works without the
// supervisor, which is needed only for peers whose node has another name.
func (c Cluster) VirtualNodes(ctx context.Context, name string) ([]corev1.Node, error) {
	_, nodes, err := c.virtualNodes(ctx, name)
	return nodes, err
}

func (c Cluster) virtualNodes(ctx context.Context, name string) (kubernetes.Interface, []corev1.Node, error) {
	client, err := c.Client()
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	if st, err := c.Status(ctx); err == nil {
		for _, p := range st.Peers {
			if p.Name == name {
				ids = append(ids, string(p.ID))
			}
		}
	}
	nodes, err := drain.Find(ctx, client, name, ids...)
	return client, nodes, err
}

// Cordon sets whether the virtual nodes of a name take new pods, and returns the names of the nodes that were set.
func (c Cluster) Cordon(ctx context.Context, name string, on bool) (set []string, err error) {
	client, nodes, err := c.virtualNodes(ctx, name)
	for i := 0; i < len(nodes) && err == nil; i++ {
		if err = drain.Cordon(ctx, client, nodes[i].Name, on); err == nil {
			set = append(set, nodes[i].Name)
		}
	}
	return set, err
}

// Drain is a drain to come: of the virtual nodes of a name.
type Drain struct {
	Name  string
	Nodes []corev1.Node
	Pods  []corev1.Pod // of this cluster, there

	client kubernetes.Interface
}

// Drain finds what a drain of a name evicts. Nothing is done before Run.
func (c Cluster) Drain(ctx context.Context, name string) (*Drain, error) {
	client, nodes, err := c.virtualNodes(ctx, name)
	if err != nil {
		return nil, err
	}
	d := &Drain{Name: name, Nodes: nodes, client: client}
	d.Pods, err = drain.Pods(ctx, client, d.names())
	return d, err
}

func (d *Drain) names() (names []string) {
	for i := range d.Nodes {
		names = append(names, d.Nodes[i].Name)
	}
	return names
}

// Lost returns an error that names pods that nothing creates again elsewhere.
func (d *Drain) Lost() error {
	if alone := drain.Alone(d.Pods); len(alone) > 0 {
		return fmt.Errorf("%w; or: rivulet drain %s --force", &drain.Unmanaged{Pods: alone}, d.Name)
	}
	return nil
}

// String describes in sentences that follow another what happens to the pods; empty without pods.
func (d *Drain) String() string { return drain.Ends(d.Pods) }

// Run cordons the nodes, and evicts the pods until all are gone or ctx ends; the error then wraps drain.ErrLeft. With
// force it evicts pods without an owner, too. Each step is reported.
func (d *Drain) Run(ctx context.Context, force bool, report func(drain.Event)) error {
	err := (&drain.Drain{Client: d.client, Nodes: d.names(), Force: force, Report: report}).Run(ctx)
	if errors.Is(err, drain.ErrLeft) {
		return fmt.Errorf("%w; %s", err, d.leftCure())
	}
	return err
}

// leftCure is the cure for pods that do not leave.
func (d *Drain) leftCure() string {
	for i := range d.Nodes {
		if !ready(&d.Nodes[i]) {
			return "the peer cannot be reached, they leave when it is back; is it gone for good: rivulet unpeer " + d.Name + " --force"
		}
	}
	return "run rivulet drain " + d.Name + " again, with a longer --timeout"
}

func ready(node *corev1.Node) bool {
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return true // unknown
}
