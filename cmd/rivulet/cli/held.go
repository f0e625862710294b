package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"
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

// warnOfHeld names the claims of a namespace whose data are on peers: its pods cannot run at home without them, and the
// data are not moved back.
func warnOfHeld(cmd *cobra.Command, c *common, namespace string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	volumes, err := volumesAway(cmd.Context(), client)
	if err != nil {
		return err
	}
	for i := range volumes {
		if ref := volumes[i].Spec.ClaimRef; ref.Namespace == namespace {
			fmt.Fprintf(cmd.OutOrStdout(), "the data of claim %s are on %s, and pods that use it wait for them; bring them home: rivulet move volume %s/%s home\n",
				ref.Name, volume.Node(&volumes[i]), namespace, ref.Name)
		}
	}
	return nil
}

// ending is what ends with a peering, or with one direction of it.
type ending struct {
	peer   string       // name
	pods   []corev1.Pod // of this cluster, there
	claims []string     // of this cluster, whose data are there
	theirs int          // the peer's pods here
	data   []string     // the peer's claims that have data here
	hidden bool         // the list may be incomplete
}

// endingWith finds what ends with a peering: what is borrowed, what is lent, or both. For a cluster that is no peer it
// is empty, with an empty peer, and also before the first start of the engine.
func (c *common) endingWith(ctx context.Context, name string, borrowed, lent bool) (e ending, err error) {
	st, err := api.Get(ctx, c.dirs.Run)
	if err != nil {
		return e, err
	}
	meant := peer.Meant(notApart(st.Peers), name, func(p peer.View) (peer.ID, []string) {
		if !p.Control.IsValid() {
			return p.ID, []string{p.Name}
		}
		return p.ID, []string{p.Name, p.Control.String(), p.Control.Addr().String()}
	})
	if len(meant) == 0 {
		return e, nil
	}
	p := meant[0]
	e.peer = called(p)
	client, err := c.client()
	if err == nil && borrowed {
		err = e.findBorrowed(ctx, client, st, p.ID)
	}
	if err == nil && lent {
		err = e.findLent(ctx, client, st, p.ID)
	}
	if e.hidden = err != nil && !errors.Is(err, fs.ErrNotExist); e.hidden {
		return e, fmt.Errorf("what would be lost with %s cannot be told: %w; try again when the API server answers (rivulet status), or add --force", e.peer, err)
	}
	return e, nil
}

func (e *ending) findBorrowed(ctx context.Context, client kubernetes.Interface, st api.Status, id peer.ID) error {
	var nodes []string
	for _, n := range st.VirtualNodes {
		if n.ID == string(id) {
			nodes = append(nodes, n.Name)
		}
	}
	var err error
	if e.pods, err = drain.Pods(ctx, client, nodes); err != nil {
		return err
	}
	volumes, err := volumesAway(ctx, client)
	for i := range volumes {
		if v := &volumes[i]; v.Labels[volume.AwayLabel] == string(id) || slices.Contains(nodes, volume.Node(v)) {
			e.claims = append(e.claims, v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name)
		}
	}
	return err
}

func (e *ending) findLent(ctx context.Context, client kubernetes.Interface, st api.Status, id peer.ID) error {
	i := slices.IndexFunc(st.Consumers, func(t offload.Consumer) bool { return t.ID == id })
	if i < 0 {
		return nil
	}
	e.theirs = st.Consumers[i].Pods
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
			e.data = append(e.data, twin.Name+"/"+claim.Name)
		}
	}
	return nil
}

// lost returns an error that names the data lost for good.
func (e *ending) lost() error {
	const force = "; or: rivulet unpeer %s --force"
	switch alone := drain.Alone(e.pods); {
	case len(e.claims) > 0:
		return fmt.Errorf("the data of %s are on %s and would be lost; bring them home: rivulet move volume %s home"+force, strings.Join(e.claims, ", "), e.peer, e.claims[0], e.peer)
	case len(e.data) > 0:
		return fmt.Errorf("%s has data here, in %s, and would lose them; have them brought home from there: rivulet move volume NAMESPACE/CLAIM home"+force, e.peer, strings.Join(e.data, ", "), e.peer)
	case len(alone) > 0:
		return fmt.Errorf("%w"+force, &drain.Unmanaged{Pods: alone}, e.peer)
	}
	return nil
}

// String describes all that ends, in sentences that follow another.
func (e *ending) String() string {
	text := drain.Ends(e.pods)
	if e.theirs > 0 {
		text += fmt.Sprintf(". Pods of %s that end here: %d", e.peer, e.theirs)
	}
	if data := append(slices.Clone(e.claims), e.data...); len(data) > 0 {
		text += ". Claims whose data are lost: " + strings.Join(data, ", ")
	}
	if e.hidden {
		text += ". What else ends by that cannot be told now"
	}
	return text
}

// volumesAway are those of claims whose data are on peers, in the order of the claims.
func volumesAway(ctx context.Context, client kubernetes.Interface) ([]corev1.PersistentVolume, error) {
	list, err := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{LabelSelector: volume.AwayLabel})
	if err != nil {
		return nil, err
	}
	out := slices.DeleteFunc(list.Items, func(v corev1.PersistentVolume) bool { return v.Spec.ClaimRef == nil })
	slices.SortFunc(out, volume.ByClaim)
	return out, nil
}
