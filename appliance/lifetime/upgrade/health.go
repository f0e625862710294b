package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/appliance/engine"
	"rivulet/appliance/state/paths"
	"rivulet/appliance/state/role"
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
// write, and every peer that was connected before, and is not switched off, is connected again.
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
	if !role.Of(d.State).Worker { // which has no datastore; that it is ready shows that its server answers
		if err := touch(ctx, paths.Kubeconfig(d.State), a.Next.Name); err != nil {
			return fmt.Errorf("the datastore takes no write: %w", err)
		}
	}
	return a.together(ctx, slices.Concat(st.Peers, st.Nodes))
}

// together checks that the peers of before are connected. One that does not even take a connection, which it did
// before, is switched off: that is no fault of this version. Of several at least one has to be connected, or the fault
// may be here.
func (a Attempt) together(ctx context.Context, all []seenPeer) error {
	off := silent(ctx, a.Answered)
	var missing, excused []string
	for _, id := range a.Peers {
		i := slices.IndexFunc(all, func(p seenPeer) bool { return p.ID == id })
		switch {
		case i < 0:
			missing = append(missing, id+" (forgotten)")
		case all[i].State == connected:
		case off[id]:
			excused = append(excused, cmp.Or(all[i].Name, all[i].Node, id)+" (switched off)")
		default:
			missing = append(missing, fmt.Sprintf("%s (%s)", cmp.Or(all[i].Name, all[i].Node, id), all[i].State))
		}
	}
	if len(excused) > 1 && len(excused) == len(a.Peers) {
		missing = excused
	}
	if len(missing) > 0 {
		return fmt.Errorf("peers that were connected before are not: %s", strings.Join(missing, ", "))
	}
	return nil
}

// dialTimeout is how long a peer may take to take a connection.
const dialTimeout = 4 * time.Second

// answering returns those of the peers (by ID) that take a TCP connection at their address now.
func answering(ctx context.Context, addrs map[string]string) map[string]string {
	out := maps.Clone(addrs)
	for id, err := range dialAll(ctx, addrs) {
		if err != nil {
			delete(out, id)
		}
	}
	return out
}

// silent returns those of the peers whose machine, or Rivulet there, does not answer. What this device cannot send is
// no silence of theirs.
func silent(ctx context.Context, addrs map[string]string) map[string]bool {
	out := map[string]bool{}
	for id, err := range dialAll(ctx, addrs) {
		var late net.Error
		out[id] = ctx.Err() == nil && (errors.As(err, &late) && late.Timeout() || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH))
	}
	return out
}

// dialAll dials all addresses at once.
func dialAll(ctx context.Context, addrs map[string]string) map[string]error {
	var mu sync.Mutex
	var all sync.WaitGroup
	out := map[string]error{}
	for id, addr := range addrs {
		all.Go(func() {
			conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
			if err == nil {
				conn.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			out[id] = err
		})
	}
	all.Wait()
	return out
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
