package peer

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/peer"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Fabric is the part of the fabric that a Source uses.
type Fabric interface {
	peer.Following
	// Peerings are all peers at one moment: those of Links, and those without a tunnel.
	Peerings() ([]peer.Link, []peer.Unlinked)
	// Link is the link to one peer, false if there is none.
	Link(id peer.ID) (peer.Link, bool)
	// TLS returns what a client needs for the peer's control address.
	TLS(id peer.ID) (certPEM, keyPEM, serverCertPEM []byte, serverName string, err error)
	// Client is a client for the peer's control routes below the URL.
	Client(id peer.ID) (*http.Client, string, error)
	// Dial opens a connection inside the tunnel.
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// Consumer is the part of the consumer that a Source uses; see consumer.Consumer.
type Consumer interface {
	// SetTargets and End receive the targets.
	SetTargets(kind target.Kind, all []target.Spec, complete bool)
	End(ids ...string)
	// Existing returns the targets of a kind that have a virtual node, and those with pods or data of home.
	Existing(ctx context.Context, kind target.Kind) (nodes, used map[string]bool, err error)
	// Busy reports whether home has pods at a target.
	Busy(id string) bool
}

// Source makes targets of the peers; those that lend nothing are withdrawn ones, and those without a tunnel are silent.
// Only a revocation ends a target: what is in no list may still run pods of home.
type Source struct {
	Fabric Fabric
	// PodCIDR is home's.
	PodCIDR netip.Prefix
	// Control is the control address inside the tunnel, in home's view.
	Control netip.AddrPort
	// Nodes selects the peers that get a virtual node; nil selects all. Choose reports that it may have changed.
	Nodes    func() policy.Nodes
	Consumer Consumer
	// Relay is that of the targets.
	Relay Relay
	// Moved is notified after home's pods at a peer, or that peer's peers, may have changed: by the consumer and by the
	// targets.
	Moved *changes.Signal

	again    changes.Signal
	unchosen atomic.Pointer[[]string]
}

// Choose applies changed Nodes at once.
func (s *Source) Choose() { s.again.Notify() }

// Unchosen are the IDs, sorted, of the peers that get no virtual node, or only keep one for the pods that it has.
func (s *Source) Unchosen() []string {
	if ids := s.unchosen.Load(); ids != nil {
		return *ids
	}
	return nil
}

// together is the pause after the targets were set: changes of many peers are one.
const together = 100 * time.Millisecond

// Run follows the peers until ctx ends.
func (s *Source) Run(ctx context.Context) {
	changed, stop := s.Fabric.Changed()
	defer stop()
	again, stop := s.again.Changed()
	defer stop()
	choice := chooser{closed: map[peer.ID]time.Time{}}
	look := time.NewTimer(target.Patience)
	defer look.Stop()
	for {
		links, unlinked := s.Fabric.Peerings()
		for _, id := range s.Fabric.Departed() {
			s.Consumer.End(string(id))
		}
		specs, leaving := s.specs(ctx, &choice, links, unlinked)
		s.Consumer.SetTargets(target.Peer, specs, false)
		changes.Wait(ctx, together)
		var due <-chan time.Time
		switch {
		case leaving:
			due = time.After(settled)
		case len(choice.lost) > 0:
			due = time.After(absence)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		case <-due:
		case <-look.C: // from here on the consumer shows nodes without a target
		}
	}
}

// specs are the targets of the peers: of the chosen ones, and of those whose nodes are still in use; leaving: there are
// some of these.
func (s *Source) specs(ctx context.Context, choice *chooser, links []peer.Link, unlinked []peer.Unlinked) (specs []target.Spec, leaving bool) {
	why := map[peer.ID]string{}
	for _, u := range unlinked {
		links, why[u.ID] = append(links, u.Link), u.Why
	}
	var rule policy.Nodes
	if s.Nodes != nil {
		rule = s.Nodes()
	}
	chosen := choice.choose(rule, links, time.Now())
	var nodes, used map[string]bool
	var unchosen []string
	for _, l := range links {
		spec := s.spec(l, why[l.ID])
		if l.NoBorrow || chosen[l.ID] {
			specs = append(specs, spec)
			continue
		}
		unchosen = append(unchosen, spec.ID)
		var err error
		if nodes == nil {
			nodes, used, err = s.Consumer.Existing(ctx, target.Peer)
		}
		if err != nil || choice.keep(l.ID, nodes[spec.ID], used[spec.ID], time.Now()) {
			spec.Unchosen, leaving = true, true
			specs = append(specs, spec)
		}
	}
	maps.DeleteFunc(choice.closed, func(id peer.ID, _ time.Time) bool { return !slices.Contains(unchosen, string(id)) })
	slices.Sort(unchosen)
	s.unchosen.Store(&unchosen)
	return specs, leaving
}

// way are the inputs of a peer's target; after a change it is made again.
type way struct {
	addr               netip.AddrPort
	theirs, remote, as netip.Prefix
	why                string // there is no tunnel
}

func (s *Source) spec(l peer.Link, why string) target.Spec {
	return target.Spec{
		ID: string(l.ID), Name: l.Name, Short: l.ID.Short(), Kind: target.Peer, Control: s.Control,
		Withdrawn: l.NoBorrow, Labels: labels(l),
		Key: way{l.Addr, l.PeerCIDR, l.PeerMappedCIDR, l.LocalMappedCIDR, why},
		New: func(name string, log *slog.Logger) (target.Target, error) {
			t, err := s.target(l, name, why, log)
			if err != nil {
				return nil, err // not t: a nil *Target would be a non-nil Target
			}
			return t, nil
		},
	}
}

// labels are what home knows of a peer.
func labels(l peer.Link) map[string]string {
	out := map[string]string{policy.PriceLabel: strconv.Itoa(l.Price), policy.NearnessLabel: strconv.Itoa(l.Nearness)}
	maps.Copy(out, l.Labels)
	return out
}

func (s *Source) target(l peer.Link, name, why string, log *slog.Logger) (*Target, error) {
	if why != "" {
		return Silent(l, name, why, s.PodCIDR, log)
	}
	cert, key, server, serverName, err := s.Fabric.TLS(l.ID)
	if err != nil {
		return nil, fmt.Errorf("offload: certificates for peer %s: %w", l.Name, err)
	}
	client, base, err := s.Fabric.Client(l.ID)
	if err != nil {
		return nil, fmt.Errorf("offload: control route to peer %s: %w", l.Name, err)
	}
	return New(Config{
		Busy: func() bool { return s.Consumer.Busy(string(l.ID)) }, BusyChanged: s.Moved.Changed,
		Name: name, Link: l, Links: s.Fabric.Links, Now: s.Fabric.Link, LinksChanged: s.Fabric.Changed, PodCIDR: s.PodCIDR, Relay: s.Relay,
		Dial: s.Fabric.Dial, HTTP: client, BaseURL: base,
		Cert: cert, Key: key, ServerCert: server, ServerName: serverName, Changed: s.Moved.Notify, Log: log,
	})
}
