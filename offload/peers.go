package offload

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/peer"
	"rivulet/offload/node"
	"rivulet/offload/policy"
)

const (
	// patience is how long after a start a virtual node may be without a peer: the
	// fabric may still be reading its records. Removing a node ends pods.
	patience = time.Minute
	// tidy is how long to wait before another try to remove a node.
	tidy = 5 * time.Second
)

// followPeers keeps one stack for each peer, and removes the virtual nodes of
// clusters that are no peers any more.
func (o *Offload) followPeers(ctx context.Context) {
	changed, stop := o.cfg.Peers.Changed()
	defer stop()
	defer o.stopStacks(nil)
	started := time.Now()
	look := time.NewTimer(patience)
	defer look.Stop()
	for {
		links, ended := o.providers(), o.departed()
		o.tenancy.Only(o.borrowers())
		gone := o.stopStacks(links)
		for _, l := range links {
			o.startStack(ctx, l)
		}
		o.mu.Lock()
		for _, id := range ended { // that is known, not guessed: it needs no patience
			gone = gone || !o.served[id]
			o.served[id] = true
		}
		o.mu.Unlock()
		if gone || time.Since(started) >= patience {
			if err := o.removeStrays(ctx, links, time.Since(started) >= patience); err != nil {
				o.problem("virtual nodes", err)
				look.Reset(tidy)
			} else {
				o.problem("virtual nodes", nil)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-look.C:
		}
	}
}

// stopStacks ends the stacks whose peer is not in links, or needs another stack,
// and reports whether a peer is gone.
func (o *Offload) stopStacks(links map[peer.ID]peer.Link) (gone bool) {
	o.mu.Lock()
	var ended []*stack
	for id, s := range o.stacks {
		l, ok := links[id]
		if ok && sameWay(l, s.link) {
			if s.target != nil {
				s.target.LinksChanged()
			}
			continue
		}
		gone = gone || !ok
		ended = append(ended, s)
		delete(o.stacks, id)
	}
	o.mu.Unlock()
	for _, s := range ended {
		s.stop()
		<-s.done
		o.problem("virtual node of "+s.link.Name, nil)
	}
	return gone
}

// sameWay reports whether what a stack was built on is unchanged.
func sameWay(a, b peer.Link) bool {
	return a.Addr == b.Addr && a.Theirs == b.Theirs && a.Remote == b.Remote && a.As == b.As
}

// removeStrays deletes virtual nodes without a peer: those whose stack ended in
// this run, and, if all, those of earlier runs.
func (o *Offload) removeStrays(ctx context.Context, links map[peer.ID]peer.Link, all bool) error {
	nodes, err := o.home.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: policy.VirtualNodeLabel})
	if err != nil {
		return err
	}
	for _, n := range nodes.Items {
		id := peer.ID(n.Labels[policy.VirtualNodeLabel])
		if _, ok := links[id]; ok || !all && !o.served[id] {
			continue
		}
		o.cfg.Log.Info("removing the virtual node of a cluster that is no peer any more", "node", n.Name, "peer", id.Short())
		if err := node.Remove(ctx, o.home, n.Name); err != nil {
			return err
		}
	}
	return nil
}
