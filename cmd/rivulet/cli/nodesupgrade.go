package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/lifetime/nodes"
	"rivulet/appliance/lifetime/upgrade"
	"rivulet/fabric/changes"
	"rivulet/image/signed"
)

// spareTime is added to the window of a node's upgrade: restarts, and going back.
const spareTime = 10 * time.Minute

func newNodesUpgrade(c *common) *cobra.Command {
	var q nodes.UpgradeQuery
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "upgrade FILE [NODE...]",
		Short: "upgrade the workers one after the other: drained, tried, and undone where it fails",
		Long: "FILE is a release of rivulet, FILE.sig beside it, for the machines of these workers; without names for all workers. Upgrade the server itself first: rivulet upgrade FILE.\n" +
			"Each worker checks the file, is drained, tries the version for --window and takes pods again. The first that fails ends the command; it has its old version. Workers that run the version are left out.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("upgrade takes the file of a release; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needRoot("nodes upgrade"); err != nil {
				return err
			}
			if q.Every < time.Second || q.Window < q.Every {
				return usagef("--window %s, --every %s: look at least once, and not more than once a second; see: rivulet nodes upgrade --help", q.Window, q.Every)
			}
			names, err := c.workers(cmd.Context(), args[1:])
			if err != nil {
				return err
			}
			for _, name := range names {
				if err := c.upgradeNode(cmd, name, args[0], q, patience); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&q.Window, "window", upgrade.DefaultWindow, "how long the new version must be healthy on each")
	cmd.Flags().DurationVar(&q.Every, "every", upgrade.DefaultEvery, "interval of checks")
	cmd.Flags().BoolVar(&q.Older, "older", false, "permit a release that is older than what runs")
	cmd.Flags().DurationVar(&patience, "timeout", 5*time.Minute, "how long to wait until a node's pods have ended")
	return cmd
}

// workers are the named ones, or all.
func (c *common) workers(ctx context.Context, named []string) (names []string, err error) {
	list, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, n := range list {
		if n.Role == "worker" {
			names, known[n.Name] = append(names, n.Name), true
		}
	}
	for _, name := range named {
		if !known[name] {
			return nil, fmt.Errorf("no worker of this cluster is called %q; see: rivulet nodes", name)
		}
	}
	if len(named) > 0 {
		return named, nil
	}
	if len(names) == 0 {
		return nil, errors.New("this cluster has no workers; for this device: rivulet upgrade FILE")
	}
	return names, nil
}

// upgradeNode upgrades one worker.
func (c *common) upgradeNode(cmd *cobra.Command, name, file string, q nodes.UpgradeQuery, patience time.Duration) (err error) {
	ctx := cmd.Context()
	next, err := c.sendRelease(ctx, name, file, q)
	if err != nil && strings.Contains(err.Error(), upgrade.RunsAlready) {
		return printf(cmd, "%s: it runs that version already\n", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !node.Spec.Unschedulable {
		defer func() {
			again := context.WithoutCancel(ctx)
			_, uncordoned := client.CoreV1().Nodes().Patch(again, name, types.StrategicMergePatchType, []byte(`{"spec":{"unschedulable":null}}`), metav1.PatchOptions{})
			if uncordoned != nil {
				err = errors.Join(err, fmt.Errorf("%s takes no pods: %w; rivulet kubectl uncordon %s", name, uncordoned, name))
			}
		}()
	}
	if err := c.drainNode(cmd, name, patience); err != nil {
		return fmt.Errorf("%s is not upgraded: %w", name, err)
	}
	if err := printf(cmd, "%s: drained, tries %s for %s\n", name, next.Name, q.Window); err != nil {
		return err
	}
	if err := api.Call(ctx, c.dirs.Run, http.MethodPost, nodes.UpgradePath(name), nil, nil); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	result, err := c.nodeUpgraded(ctx, name, q.Window+spareTime)
	if err != nil {
		return err
	}
	if !result.OK {
		return fmt.Errorf("%s has gone back to %s: %s; the workers after it are as they were; see the log of that time there", name, result.From, result.Reason)
	}
	return printf(cmd, "%s: %s → %s\n", name, result.From, result.Version)
}

// sendRelease sends a release to a worker, which checks it.
func (c *common) sendRelease(ctx context.Context, name, file string, q nodes.UpgradeQuery) (next upgrade.Version, err error) {
	sig, err := signed.Beside(file)
	if err != nil {
		return next, err
	}
	if q.Signature, err = json.Marshal(sig); err != nil {
		return next, err
	}
	f, err := os.Open(file)
	if err != nil {
		return next, fmt.Errorf("%w; name the file of a release", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return next, err
	}
	q.Size = fi.Size()
	resp, err := api.Do(ctx, c.dirs.Run, http.MethodPut, q.Path(name), f)
	if err != nil {
		return next, err
	}
	defer resp.Body.Close()
	return next, json.NewDecoder(resp.Body).Decode(&next)
}

// nodeUpgraded waits for the end of a worker's upgrade; the worker restarts meanwhile.
func (c *common) nodeUpgraded(ctx context.Context, name string, limit time.Duration) (o upgrade.Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := c.client()
	if err != nil {
		return o, err
	}
	for {
		var s upgrade.State
		err := api.Call(ctx, c.dirs.Run, http.MethodGet, nodes.UpgradePath(name), nil, &s)
		if err == nil && s.Phase == upgrade.Idle && s.Last != nil {
			var node *corev1.Node
			if node, err = client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err == nil {
				if ready, _ := engine.NodeReady(node); ready {
					return *s.Last, nil
				}
			}
		}
		if !changes.Wait(ctx, time.Second) {
			return o, fmt.Errorf("%s does not come to an end within %s: %w; see there: rivulet upgrade", name, limit, errors.Join(ctx.Err(), err))
		}
	}
}
