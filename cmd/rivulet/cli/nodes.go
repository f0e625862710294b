package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/drain"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/lifetime/nodes"
	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
)

func newToken(c *common) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "make a token with which another device joins this cluster as a node, or list and revoke them", Args: noArgs}
	var life time.Duration
	create := &cobra.Command{
		Use:   "create",
		Short: "make a token for one device, as text, as a link and as a QR code",
		Long:  "On the other device: sudo rivulet join TOKEN. A token is valid once, for ten minutes or the time of --for (1m to 24h).",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var i api.Invited
			if err := api.Call(cmd.Context(), c.dirs.Run, http.MethodPost, "/v1/tokens", api.NodeWord{Life: life}, &i); err != nil {
				return err
			}
			return c.printInvited(cmd.OutOrStdout(), i, "on the device that is to join, until %s, once:\n\n  sudo rivulet join %s\n\nto take it back: sudo rivulet token revoke %s\n", i.Expires.Local().Format(time.TimeOnly), i.Code, i.ID)
		},
	}
	create.Flags().DurationVar(&life, "for", 0, "how long it is valid: 1m to 24h (default 10m)")
	list := &cobra.Command{
		Use:   "list",
		Short: "list the tokens of the last day with their results",
		Args:  noArgs,
		RunE: get(c, "/v1/invites", func(out io.Writer, l api.Invites, wide bool) error {
			return printInvites(out, "no token was made in the last day", l.Of(true), wide)
		}),
	}
	cmd.AddCommand(withOutput(c, create), withOutput(c, list, "wide"), newRevoke(c, "token"))
	return cmd
}

// joinWait bounds the wait until a device that has joined runs as a worker.
const joinWait = 5 * time.Minute

func newJoin(c *common) *cobra.Command {
	var reset, noWait bool
	cmd := &cobra.Command{
		Use:   "join TOKEN",
		Short: "make this device a node of another device's cluster; what it is now is removed",
		Long: "TOKEN is the output of rivulet token create on that device: its text or its link, or - to read it from standard input. Pods, volumes and peers of this device's own cluster are lost.\n" +
			"If it has any pods or volumes, --reset is required, and a backup without the volumes' content is written beside the state folder first.\n" +
			"The device keeps its configuration. rivulet leave makes it a cluster of its own again.",
		Args: takes(1, "join takes one token; make one on the other device: rivulet token create; see: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needRoot("join"); err != nil {
				return err
			}
			ctx := cmd.Context()
			token, err := secretWord(cmd, args[0])
			if err != nil {
				return err
			}
			st, err := api.Get(ctx, c.dirs.Run)
			if err != nil {
				return err
			}
			if st.Member == nil {
				if err := c.mayBeLost(cmd, reset); err != nil {
					return err
				}
			}
			var done api.JoinedCluster
			if err := api.CallWithin(ctx, time.Minute, c.dirs.Run, http.MethodPost, "/v1/nodes/join", api.NodeWord{Token: token}, &done); err != nil {
				return err
			}
			if err := printf(cmd, "this device is node %s of %s; what it was is being removed\n", done.Node, done.Cluster); err != nil || noWait {
				return err
			}
			return c.awaitWorker(ctx, cmd, done)
		},
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "even if this device's own pods or volumes are lost")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until it runs as a node")
	yesFlag(cmd)
	return cmd
}

// mayBeLost asks before this device's cluster is removed, and saves it if there is anything in it.
func (c *common) mayBeLost(cmd *cobra.Command, reset bool) error {
	ctx := cmd.Context()
	cfg, err := c.usable(ctx)
	if err == nil {
		err = rest.LoadTLSFiles(cfg) // the files are removed while this command waits
		cfg.CertFile, cfg.KeyFile = "", ""
	}
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	own, err := nodes.OwnOf(ctx, client, c.dirs.State)
	if err != nil {
		return err
	}
	if own.Any() {
		lost := fmt.Sprintf("%d pods, %d volume claims and %d virtual clusters of this device's own", own.Pods, own.Claims, own.VirtualClusters)
		if !reset {
			return fmt.Errorf("nothing was done: %s would be lost; to join nevertheless: rivulet join TOKEN --reset", lost)
		}
		if err := confirm(cmd, "join that cluster", lost+" are lost"); err != nil {
			return err
		}
		file := strings.TrimRight(c.dirs.State, "/") + "-before-join-" + time.Now().UTC().Format("20060102T150405Z") + ".backup"
		src, done, err := source(ctx, c.dirs)
		if err != nil {
			return err
		}
		defer done()
		src.LeftOut = func(what, why string) {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s is not in the backup: %s\n", what, why)
		}
		return save(cmd, c, src, file, false)
	}
	return nil
}

// awaitWorker waits until the device runs as a worker.
func (c *common) awaitWorker(ctx context.Context, cmd *cobra.Command, j api.JoinedCluster) error {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	for {
		st, err := api.Get(ctx, c.dirs.Run)
		if err == nil && st.Member != nil && st.Ready {
			return printf(cmd, "node %s is ready; see on the server: rivulet nodes\n", j.Node)
		}
		if !changes.Wait(ctx, 300*time.Millisecond) {
			if err == nil {
				err = errors.New(st.Waiting)
			}
			return fmt.Errorf("the device has joined %s and is not ready yet: %w; see: rivulet status", j.Cluster, err)
		}
	}
}

func newLeave(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "make this node a cluster of its own again; its pods and volumes are removed",
		Long:  "The server replaces its pods on other nodes. Volumes on this device are lost: move or copy their data first.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("leave"); err != nil {
				return err
			}
			if err := confirm(cmd, "leave this cluster", "all pods and volumes on this device are removed"); err != nil {
				return err
			}
			var done api.JoinedCluster
			if err := api.CallWithin(cmd.Context(), 30*time.Second, c.dirs.Run, http.MethodPost, "/v1/nodes/leave", api.NodeWord{}, &done); err != nil {
				return err
			}
			return printf(cmd, "this device has left %s and becomes a cluster of its own; see: rivulet status\n", done.Cluster)
		},
	}
	yesFlag(cmd)
	return cmd
}

func newNodes(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "list the devices of this cluster: role, state, path, pods",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := c.nodes(cmd.Context())
			if err != nil {
				return err
			}
			return result(cmd, c, list, printNodes)
		},
	}
	var force bool
	var patience time.Duration
	remove := &cobra.Command{
		Use:   "remove NODE",
		Short: "remove a worker for good: its pods move to other nodes, and it may not come back without a token",
		Long:  "The node is drained first, for --timeout at most. Pods with volumes on it wait until the node is back or their claims are deleted. --force does not drain, for a device that is lost.",
		Args:  takes(1, "remove takes the name of one node; see: rivulet nodes, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := removableNode(cmd.Context(), c, args[0], force); err != nil {
				return err
			}
			if err := confirm(cmd, "remove node "+args[0]+" from this cluster", "volumes on it cannot be used any more"); err != nil {
				return err
			}
			if !force {
				if err := c.drainNode(cmd, args[0], patience); err != nil {
					return fmt.Errorf("%w; nothing was removed; to remove it nevertheless: rivulet nodes remove %s --force", err, args[0])
				}
			}
			var v peer.View
			if err := api.CallWithin(cmd.Context(), 30*time.Second, c.dirs.Run, http.MethodPost, "/v1/nodes/remove", api.NodeWord{Node: args[0], Force: force}, &v); err != nil {
				return err
			}
			return printf(cmd, "%s is no node of this cluster any more\n", args[0])
		},
	}
	remove.Flags().BoolVar(&force, "force", false, "do not drain it, and remove it even if it cannot be notified")
	remove.Flags().DurationVar(&patience, "timeout", time.Minute, "how long to wait until its pods have ended")
	yesFlag(remove)
	cmd.AddCommand(remove, newNodesUpgrade(c), newNodesStandby(c), newNodesSwitch(c))
	return withOutput(c, cmd)
}

func newNodesStandby(c *common) *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use:   "standby NODE",
		Short: "let a worker become the server when this one is lost, cut off or off for longer than 8 seconds",
		Long: "The cluster's objects have to be in an SQL database (datastore in the configuration), which decides who is the server. A standby has all\n" +
			"secrets of the cluster, as the server has. This device comes back as a worker, and as a standby, when another one is the server.",
		Args: takes(1, "standby takes the name of one node; see: rivulet nodes, and: %[2]s --help"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needRoot("nodes standby"); err != nil {
				return err
			}
			var done api.JoinedCluster
			if err := api.CallWithin(cmd.Context(), 40*time.Second, c.dirs.Run, http.MethodPost, "/v1/nodes/standby", api.NodeWord{Node: args[0], Off: off}, &done); err != nil {
				return err
			}
			if off {
				return printf(cmd, "%s is no standby any more; who has that device may still have the secrets of the cluster\n", args[0])
			}
			return printf(cmd, "%s is a standby; see: rivulet nodes\n", args[0])
		},
	}
	cmd.Flags().BoolVar(&off, "off", false, "end that")
	return cmd
}

func newNodesSwitch(c *common) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "switch",
		Short: "let a standby be the server from now on, for example before this device is switched off",
		Long:  "Connections of pods and peers go on after about two seconds, the API answers again after about eight. This device is a worker then, and a standby.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("nodes switch"); err != nil {
				return err
			}
			if err := confirm(cmd, "let another device be the server", "the API is away for some seconds"); err != nil {
				return err
			}
			var done api.JoinedCluster
			if err := api.CallWithin(cmd.Context(), 30*time.Second, c.dirs.Run, http.MethodPost, "/v1/nodes/switch", api.NodeWord{}, &done); err != nil {
				return err
			}
			return printf(cmd, "%s becomes the server of %s; see there: rivulet nodes\n", done.Node, done.Cluster)
		},
	}
	yesFlag(cmd)
	return cmd
}

// clusterNode is one device of a cluster.
type clusterNode struct {
	Name    string  `json:"name"`
	Role    string  `json:"role"` // server, worker, standby
	ID      peer.ID `json:"id"`
	Ready   bool    `json:"ready"`
	State   string  `json:"state"`
	Path    string  `json:"path,omitempty"`
	Pods    int     `json:"pods"`
	Version string  `json:"version,omitempty"` // of Rivulet
	Kubelet string  `json:"kubelet,omitempty"`
	Address string  `json:"address,omitempty"`
}

func (c *common) nodes(ctx context.Context) ([]clusterNode, error) {
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return nil, err
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "!" + policy.VirtualNodeLabel})
	if err != nil {
		return nil, err
	}
	of := map[string]api.ClusterNode{}
	for _, v := range st.Nodes {
		of[v.Node] = v
	}
	var out []clusterNode
	for _, n := range list.Items {
		ready, why := engine.NodeReady(&n)
		e := clusterNode{Name: n.Name, Role: "server", Ready: ready, State: "Ready", Pods: st.Room[n.Name].Pods, Kubelet: n.Status.NodeInfo.KubeletVersion}
		if !ready {
			e.State = "NotReady: " + why
		}
		if n.Spec.Unschedulable {
			e.State += ", cordoned"
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				e.Address = a.Address
			}
		}
		if n.Labels[policy.WorkerLabel] != "" {
			e.Role = "worker"
		}
		v, known := of[n.Name]
		switch {
		case n.Name == st.NodeName:
			e.ID, e.Version = st.ID, st.Version
		case e.Role == "server" && st.Member != nil:
			e.ID = st.Member.Server
		case known:
			e.ID, e.Path, e.Version = v.ID, v.Path, v.Version
			if v.Standby {
				e.Role = "standby"
			}
			if v.Behind {
				e.State += ", without the server's present state: it cannot take over"
			}
			delete(of, n.Name)
		}
		out = append(out, e)
	}
	for _, v := range of {
		if st.Member == nil {
			out = append(out, clusterNode{Name: dash(v.Node), Role: "worker", ID: v.ID, State: "joining: " + dash(v.Reason), Path: v.Path, Version: v.Version})
		}
	}
	return out, nil
}

func printNodes(out io.Writer, list []clusterNode) error {
	return table(out, "there is no node yet; see: rivulet status", "NODE\tROLE\tSTATE\tPODS\tADDRESS\tPATH\tVERSION", list, func(n clusterNode) []any {
		return []any{n.Name, n.Role, n.State, n.Pods, dash(n.Address), dash(n.Path), dash(n.Version)}
	})
}

// removableNode is why a node cannot be removed: there is none of that name, or it is the server. With force it may be
// one that never became a node, of which the supervisor alone knows.
func removableNode(ctx context.Context, c *common, name string, force bool) error {
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return err
	}
	list, err := c.nodes(ctx)
	if err != nil && !force {
		return err
	}
	for _, n := range list {
		switch {
		case n.Name != name:
		case n.Role == "server" && n.Name == st.NodeName: // a former one, which is lost, has that role for a minute
			return fmt.Errorf("%s is the server of this cluster, which there is only with it; to have another server first: rivulet nodes switch", name)
		default:
			return nil
		}
	}
	if force {
		return nil
	}
	return fmt.Errorf("no node of this cluster is called %q; see: rivulet nodes; a device that never became a node: rivulet nodes remove NAME --force", name)
}

// drainNode ends the pods of a node, within their disruption budgets; it takes no new ones.
func (c *common) drainNode(cmd *cobra.Command, name string, patience time.Duration) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(cmd.Context(), name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("%w; see: rivulet nodes", err)
	}
	d := &drain.Helper{
		Ctx: cmd.Context(), Client: client, Force: true, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, Timeout: patience,
		Out: cmd.ErrOrStderr(), ErrOut: cmd.ErrOrStderr(),
	}
	if err := drain.RunCordonOrUncordon(d, node, true); err != nil {
		return err
	}
	if err := drain.RunNodeDrain(d, name); err != nil {
		return fmt.Errorf("%w (it takes no new pods until: rivulet kubectl uncordon %s)", err, name)
	}
	return nil
}
