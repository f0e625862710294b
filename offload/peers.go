package offload

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"rivulet/fabric/peer"
	"rivulet/offload/target"
	peertarget "rivulet/offload/target/peer"
)

// patience is how long after a start a virtual node may be without a peer: the
// fabric may still be reading its records. Removing a node ends pods.
const patience = time.Minute

// followPeers makes targets of the peers that we may borrow from, and ends what is
// under way for those that may not borrow from us any more.
func (o *Offload) followPeers(ctx context.Context) {
	changed, stop := o.cfg.Peers.Changed()
	defer stop()
	started := time.Now()
	look := time.NewTimer(patience)
	defer look.Stop()
	made := newPeerTargets()
	for {
		links, ended := o.providers(), o.departed()
		o.tenancy.Only(o.borrowers())
		o.mu.Lock()
		for _, id := range ended { // that is known, not guessed: it needs no patience
			o.served[string(id)] = true
		}
		o.mu.Unlock()
		specs := make([]target.Spec, 0, len(links))
		for _, l := range links {
			specs = append(specs, o.peerSpec(l, made))
		}
		o.SetTargets(target.Peer, specs, time.Since(started) >= patience)
		made.linksChanged()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-look.C:
		}
	}
}

// way is what a peer's stack is built on; with another one it is built anew.
type way struct {
	addr               netip.AddrPort
	theirs, remote, as netip.Prefix
}

func (o *Offload) peerSpec(l peer.Link, made *peerTargets) target.Spec {
	return target.Spec{
		ID: string(l.ID), Name: l.Name, Short: l.ID.Short(), Kind: target.Peer, Control: o.cfg.Control,
		Key: way{l.Addr, l.Theirs, l.Remote, l.As},
		New: func(name string, log *slog.Logger) (target.Target, error) {
			t, err := o.newPeerTarget(l, name, log)
			if err != nil {
				return nil, err // not t: a nil of its type would be no nil
			}
			return made.add(t), nil
		},
	}
}

func (o *Offload) newPeerTarget(link peer.Link, name string, log *slog.Logger) (*peertarget.Target, error) {
	cert, key, server, serverName, err := o.cfg.Peers.TLS(link.ID)
	if err != nil {
		return nil, fmt.Errorf("offload: certificates for peer %s: %w", link.Name, err)
	}
	client, base, err := o.cfg.Peers.Client(link.ID)
	if err != nil {
		return nil, fmt.Errorf("offload: control route to peer %s: %w", link.Name, err)
	}
	return peertarget.New(peertarget.Config{
		Name: name, Link: link, Links: o.cfg.Peers.Links, PodCIDR: o.cfg.PodCIDR,
		Dial: o.cfg.Peers.Dial, HTTP: client, BaseURL: base,
		Cert: cert, Key: key, ServerCert: server, ServerName: serverName, Log: log,
	})
}
