package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/offload/consumer/drain"
)

func newCordon(c *common) *cobra.Command {
	return cordonVerb(c, "cordon", "send no more pods to a peer; those that are there stay", true)
}

func newUncordon(c *common) *cobra.Command {
	return cordonVerb(c, "uncordon", "let pods go to a peer again", false)
}

func cordonVerb(c *common, verb, short string, on bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Args: oneNode,
		Long: "NAME is a peer, the beginning of a cluster's ID (both: all platforms of it), or one virtual node. The same as kubectl " + verb + " of the virtual nodes.",
		RunE: func(cmd *cobra.Command, args []string) error {
			client, nodes, err := virtualNodes(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			for _, node := range nodes {
				if err := drain.Cordon(cmd.Context(), client, node.Name, on); err != nil {
					return err
				}
				if c.forProgram() {
					err = c.print(cmd.OutOrStdout(), map[string]any{"node": node.Name, "unschedulable": on})
				} else {
					_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %sed\n", node.Name, verb)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	return withOutput(c, cmd)
}

func newDrain(c *common) *cobra.Command {
	var timeout time.Duration
	var force bool
	cmd := &cobra.Command{
		Use:   "drain NAME",
		Short: "cordon a peer, and evict this cluster's pods there as their PodDisruptionBudgets allow",
		Long: "The command lists the pods and requires confirmation. Owners create them again where there is capacity: at home, or on another peer. The peer stays cordoned until rivulet uncordon NAME.\n" +
			"Exit code 0: no pod of this cluster is left there; 3: some are left after --timeout (evictions continue); 1: nothing was done.",
		Args: oneNode,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, nodes, err := virtualNodes(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			var names []string
			for _, n := range nodes {
				names = append(names, n.Name)
			}
			pods, err := drain.Pods(cmd.Context(), client, names)
			if err != nil {
				return err
			}
			if alone := drain.Alone(pods); len(alone) > 0 && !force {
				return fmt.Errorf("%w; or: rivulet drain %s --force", &drain.Unmanaged{Pods: alone}, args[0])
			}
			if what := drain.Ends(pods); what != "" {
				if err := confirm(cmd, args[0]+" takes no new pods"+what); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			d := &drain.Drain{Client: client, Nodes: names, Force: force, Report: c.printSteps(cmd.OutOrStdout())}
			err = d.Run(ctx)
			if errors.Is(err, drain.ErrLeft) {
				return &exitError{exitNotReady, fmt.Errorf("%w; %s", err, leftCure(nodes, args[0]))}
			}
			return err
		},
	}
	yesFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "give up waiting after this time")
	cmd.Flags().BoolVar(&force, "force", false, "also evict pods without an owner")
	return withOutput(c, cmd)
}

// leftCure is the cure for pods that do not leave.
func leftCure(nodes []corev1.Node, name string) string {
	for i := range nodes {
		if !ready(&nodes[i]) {
			return "the peer cannot be reached, they leave when it is back; is it gone for good: rivulet unpeer " + name + " --force"
		}
	}
	return "run rivulet drain " + name + " again, with a longer --timeout"
}

// printSteps returns a function that prints each step as a line.
func (c *common) printSteps(out io.Writer) func(drain.Event) {
	if c.forProgram() {
		return func(e drain.Event) { _ = c.print(out, e) } // the reader has gone
	}
	return func(e drain.Event) {
		pod := e.Namespace + "/" + e.Pod
		switch e.What {
		case drain.Cordoned:
			fmt.Fprintln(out, "no new pods are sent there")
		case drain.Evicted:
			fmt.Fprintf(out, "%s is asked to leave\n", pod)
		case drain.Blocked:
			fmt.Fprintf(out, "%s may not go yet: %s\n", pod, oneLine(e.Why))
		case drain.Gone:
			fmt.Fprintf(out, "%s is gone (%d of %d left)\n", pod, e.Left, e.All)
		case drain.Done:
			fmt.Fprintf(out, "no pod of ours runs there any more\n")
		}
	}
}

var oneNode = takes(1, "%[1]s takes one peer; see: rivulet peers, and: %[2]s --help")

func ready(node *corev1.Node) bool {
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return true // unknown
}

// virtualNodes finds the virtual nodes of a peer. It works without the supervisor, which is needed only for peers whose
// node has another name.
func virtualNodes(ctx context.Context, c *common, name string) (kubernetes.Interface, []corev1.Node, error) {
	client, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	if st, err := api.Get(ctx, c.dirs.Run); err == nil {
		for _, p := range st.Peers {
			if p.Name == name {
				ids = append(ids, string(p.ID))
			}
		}
	}
	nodes, err := drain.Find(ctx, client, name, ids...)
	return client, nodes, err
}
