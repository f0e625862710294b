package operate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rivulet/appliance/api"
	"rivulet/fabric/peer"
	"rivulet/offload"
	"rivulet/offload/consumer/drain"
	"rivulet/offload/consumer/volume"
	"rivulet/offload/policy"
)

// Ending is what ends with a peering, or with one direction of it.
type Ending struct {
	Peer   string       // name; empty: the cluster is no peer
	Pods   []corev1.Pod // of this cluster, there
	Claims []string     // of this cluster, whose data are there
	Theirs int          // the peer's pods here
	Data   []string     // the peer's claims that have data here
	Hidden bool         // the list may be incomplete
}

// Ending finds what ends with a peering: what is borrowed, what is lent, or both. For a cluster that is no peer it
// is empty, with an empty peer, and also before the first start of the engine.
func (c Cluster) Ending(ctx context.Context, name string, borrowed, lent bool) (e Ending, err error) {
	st, err := c.Status(ctx)
	if err != nil {
		return e, err
	}
	meant := peer.Meant(Peers(st.Peers), name, func(p peer.View) (peer.ID, []string) {
		if !p.Control.IsValid() {
			return p.ID, []string{p.Name}
		}
		return p.ID, []string{p.Name, p.Control.String(), p.Control.Addr().String()}
	})
	if len(meant) == 0 {
		return e, nil
	}
	p := meant[0]
	e.Peer = NameOf(p)
	client, err := c.Client()
	if err == nil && borrowed {
		err = e.findBorrowed(ctx, client, st, p.ID)
	}
	if err == nil && lent {
		err = e.findLent(ctx, client, st, p.ID)
	}
	if e.Hidden = err != nil && !errors.Is(err, fs.ErrNotExist); e.Hidden {
		return e, fmt.Errorf("what would be lost with %s cannot be told: %w; try again when the API server answers (rivulet status), or add --force", e.Peer, err)
	}
	return e, nil
}

func (e *Ending) findBorrowed(ctx context.Context, client kubernetes.Interface, st api.Status, id peer.ID) error {
	var nodes []string
	for _, n := range st.VirtualNodes {
		if n.ID == string(id) {
			nodes = append(nodes, n.Name)
		}
	}
	var err error
	if e.Pods, err = drain.Pods(ctx, client, nodes); err != nil {
		return err
	}
	volumes, err := volumesAway(ctx, client)
	for i := range volumes {
		if v := &volumes[i]; v.Labels[volume.AwayLabel] == string(id) || slices.Contains(nodes, volume.Node(v)) {
			e.Claims = append(e.Claims, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name)
		}
	}
	return err
}

func (e *Ending) findLent(ctx context.Context, client kubernetes.Interface, st api.Status, id peer.ID) error {
	i := slices.IndexFunc(st.Consumers, func(t offload.Consumer) bool { return t.ID == id })
	if i < 0 {
		return nil
	}
	e.Theirs = st.Consumers[i].Pods
	twins, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: policy.OriginLabel + "=" + string(id)})
	if err != nil {
		return err
	}
	for _, twin := range twins.Items {
		claims, err := client.CoreV1().PersistentVolumeClaims(twin.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, claim := range claims.Items {
			e.Data = append(e.Data, twin.Name+"/"+claim.Name)
		}
	}
	return nil
}

// Lost returns an error that names the data lost for good, and pods that nothing creates again.
func (e *Ending) Lost() error {
	switch alone := drain.Alone(e.Pods); {
	case len(e.Claims) > 0:
		return fmt.Errorf("the data of %s are on %s and would be lost; bring them home: rivulet move volume %s home; or: rivulet unpeer %[2]s --force", strings.Join(e.Claims, ", "), e.Peer, e.Claims[0])
	case len(e.Data) > 0:
		return fmt.Errorf("%s has data here, in %s, and would lose them; have them brought home from there: rivulet move volume NAMESPACE/CLAIM home; or: rivulet unpeer %[1]s --force", e.Peer, strings.Join(e.Data, ", "))
	case len(alone) > 0:
		return fmt.Errorf("%w; or: rivulet unpeer %s --force", &drain.Unmanaged{Pods: alone}, e.Peer)
	}
	return nil
}

// String describes all that ends, in sentences that follow another.
func (e *Ending) String() string {
	text := drain.Ends(e.Pods)
	if e.Theirs > 0 {
		text += fmt.Sprintf(". Pods of %s that end here: %d", e.Peer, e.Theirs)
	}
	if data := append(slices.Clone(e.Claims), e.Data...); len(data) > 0 {
		text += ". Claims whose data are lost: " + strings.Join(data, ", ")
	}
	if e.Hidden {
		text += ". What else ends by that cannot be told now"
	}
	return text
}

// VolumesAway are those of claims whose data are on peers, in the order of the claims.
func (c Cluster) VolumesAway(ctx context.Context) ([]corev1.PersistentVolume, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	return volumesAway(ctx, client)
}

func volumesAway(ctx context.Context, client kubernetes.Interface) ([]corev1.PersistentVolume, error) {
	list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: volume.AwayLabel})
	if err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(list.Items, func(v corev1.PersistentVolume) bool { return v.Spec.ClaimRef == nil })
	slices.SortFunc(out, volume.ByClaim)
	return out, nil
}
