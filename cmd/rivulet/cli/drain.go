package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

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
			nodes, err := c.cluster().Cordon(cmd.Context(), args[0], on)
			for _, node := range nodes {
				if c.forProgram() {
					err = errors.Join(err, c.print(cmd.OutOrStdout(), map[string]any{"node": node, "unschedulable": on}))
				} else {
					err = errors.Join(err, printf(cmd, "%s: %sed\n", node, verb))
				}
			}
			return err
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
			d, err := c.cluster().Drain(cmd.Context(), args[0])
			if err == nil && !force {
				err = d.Lost()
			}
			if err != nil {
				return err
			}
			if what := d.String(); what != "" {
				if err := confirm(cmd, "drain "+args[0], "it takes no new pods"+what); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			err = d.Run(ctx, force, c.printSteps(cmd.OutOrStdout()))
			if errors.Is(err, drain.ErrLeft) {
				return &exitError{exitNotReady, err}
			}
			return err
		},
	}
	yesFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "give up waiting after this time")
	cmd.Flags().BoolVar(&force, "force", false, "also evict pods without an owner")
	return withOutput(c, cmd)
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
