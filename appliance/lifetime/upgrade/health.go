package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/version"
)

// seen is the part of `rivulet status` that the judge reads. It may be of another version than the judge: these fields
// keep their names and meaning.
type seen struct {
	Version string     `json:"version"`
	Ready   bool       `json:"ready"`
	Waiting string     `json:"waiting"`
	Peers   []seenPeer `json:"peers"`
	Nodes   []seenPeer `json:"nodes"` // other nodes of its cluster
}

type seenPeer struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Node  string `json:"node"`
	State string `json:"state"`
}

// connected is peer.Connected, as text.
const connected = "Connected"

// checkTimeout bounds one check of the tried version.
const checkTimeout = 20 * time.Second

// healthy checks the tried version from outside: it serves, its API server and node are ready, the datastore accepts a
// write, and every peer that was connected before is connected again.
func (d *Device) healthy(ctx context.Context, a Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var st seen
	if err := api.Call(ctx, d.Run, "GET", "/v1/status", nil, &st); err != nil {
		return fmt.Errorf("it gives no status: %w", err)
	}
	if a.Image != nil {
		a.Next.Name = version.Version // it is this binary, of the tried slot
	}
	if st.Version != a.Next.Name {
		return fmt.Errorf("version %s answers in its place", st.Version)
	}
	if !st.Ready {
		return fmt.Errorf("it is not ready: %s", st.Waiting)
	}
	if !d.worker() { // which has no datastore; that it is ready shows that its server answers
		if err := touch(ctx, paths.Kubeconfig(d.State), a.Next.Name); err != nil {
			return fmt.Errorf("the datastore takes no write: %w", err)
		}
	}
	var missing []string
	all := slices.Concat(st.Peers, st.Nodes)
	for _, id := range a.Peers {
		i := slices.IndexFunc(all, func(p seenPeer) bool { return p.ID == id })
		switch {
		case i < 0:
			missing = append(missing, id+" (forgotten)")
		case all[i].State != connected:
			missing = append(missing, fmt.Sprintf("%s (%s)", cmp.Or(all[i].Name, all[i].Node, id), all[i].State))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("peers that were connected before are not: %s", strings.Join(missing, ", "))
	}
	return nil
}

// leaseName is the object for the test of writes.
const leaseName = "rivulet-update"

// touch writes one object with a separate client.
func touch(ctx context.Context, kubeconfig, who string) error {
	cfg, err := engine.RESTConfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	leases := client.CoordinationV1().Leases(metav1.NamespaceSystem)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, RenewTime: &now}}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &who, &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}
