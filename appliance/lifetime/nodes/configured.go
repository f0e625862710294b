package nodes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/health"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
	"rivulet/fabric/pairing"
	"rivulet/offload/policy"
)

// Own is what a device loses when it joins another cluster.
type Own struct{ Pods, Claims, VirtualClusters int }

// Any reports whether there is anything.
func (o Own) Any() bool { return o != Own{} }

// OwnOf counts what the device's own cluster has.
func OwnOf(ctx context.Context, client kubernetes.Interface, state string) (o Own, err error) {
	claims, err := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "!" + policy.OriginLabel})
	if err != nil {
		return o, err
	}
	clusters, err := os.ReadDir(paths.VirtualClusters(state))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return Own{len(pods.Items), len(claims.Items), len(clusters)}, err
}

// The pauses between tries to join by the configuration.
const firstTry, lastTry = 5 * time.Second, time.Minute

// Configured begins again with the token of the configuration, which may have changed.
func (d *Device) Configured() {
	if d != nil {
		changes.Poke(d.configured)
	}
}

// joinConfigured joins the cluster whose token is in the configuration, as on a card for the first boot. It tries until
// that works or is refused, and then waits for another token.
func (d *Device) joinConfigured(ctx context.Context, client kubernetes.Interface) {
	pause := changes.Backoff{First: firstTry, Longest: lastTry}
	refused := ""
	for ctx.Err() == nil {
		token := d.Token()
		if token == "" {
			refused = ""
			d.Health.Clear(health.JoinFailed)
		} else if token != refused {
			err := d.joinEmpty(ctx, client, token)
			if err == nil {
				time.AfterFunc(restartAfter, d.Restart)
				return
			}
			if ctx.Err() == nil {
				d.Log.Warn("this device has not joined the cluster of its configuration", "err", err)
				d.Health.Report(health.JoinFailed, err)
			}
			if pairing.Refused(err) {
				refused = token
			}
		}
		again := time.NewTimer(pause.Next())
		expired := again.C
		if token == refused {
			expired = nil // until the configuration changes
		}
		select {
		case <-ctx.Done():
		case <-expired:
		case <-d.configured:
			pause.Reset()
		}
		again.Stop()
	}
}

// joinEmpty joins if nothing of this device's own cluster is lost.
func (d *Device) joinEmpty(ctx context.Context, client kubernetes.Interface, token string) error {
	if err := offTrial(); err != nil {
		return err
	}
	own, err := OwnOf(ctx, client, d.State)
	if err != nil {
		return err
	}
	if own.Any() {
		return cure.Errorf("the configuration has a token to join a cluster, and this device has %d pods, %d volume claims and %d virtual clusters of its own; to lose them: rivulet join TOKEN --reset; to keep them, remove the setting join",
			own.Pods, own.Claims, own.VirtualClusters)
	}
	f := d.Fabric()
	if n := len(f.Nodes()); n > 0 {
		return cure.Errorf("the configuration has a token to join a cluster, and this cluster has %d workers; remove them first: rivulet nodes remove NODE", n)
	}
	_, err = d.join(ctx, f, token)
	return err
}
