// Package peerrules computes the rules by which other clusters' packets reach pods of this one (docs/design/reach.md;
// fabric/reach has the table). It reads where pods of this cluster run, by their statuses and the peers' offers, CNI
// results, twins, links and what is opened. It alone fills the table, and supplies the offers with the tenants of each
// consumer. Restart: a peer's part of the table stays until that peer's pods are loaded. Failure: the table stays
// unchanged, with a problem of the part "reach".
package peerrules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	table "rivulet/fabric/reach"
	"rivulet/offload/nodeagent/podnet"
)

const (
	// checkEvery is the longest interval of reads of CNI results.
	checkEvery = 15 * time.Second
	// pause is the least time between two passes: pods come in bursts.
	pause = 20 * time.Millisecond
	// perPod is how many addresses count for each pod of this cluster at a peer: one that is being replaced has two for
	// a while.
	perPod = 2
)

// Cluster is what this cluster knows of its peers, and what it is told of the pods here.
type Cluster interface {
	// Twins returns the consumer of each twin namespace.
	Twins() map[string]peer.ID
	// Peers returns those with a link.
	Peers() []Peer
	// Whole returns prefixes in which every address is this cluster's: gateways of external targets.
	Whole() []netip.Prefix
	// Nodes returns the prefixes behind other nodes of this cluster, Others the addresses of each consumer's pods there.
	Nodes() []netip.Prefix
	Others() map[peer.ID][]netip.Addr
	// Open returns what the owner has opened.
	Open() []table.Grant
	// SetTenants receives the addresses of each consumer's pods in this cluster whenever they change.
	SetTenants(of map[peer.ID][]netip.Addr)
	// SetOurs receives in each pass the addresses of this cluster's pods at peers, and which peers these have. It
	// returns the addresses by which they reach each other through this cluster.
	SetOurs(at map[peer.ID][]netip.Addr, neighbours map[peer.ID]map[peer.ID]netip.Prefix) (through map[netip.Addr]netip.Addr)
	// Report receives the result of each pass; nil is success.
	Report(err error)
}

// Config are the inputs of Run. All fields are required.
type Config struct {
	// Interface is the tunnel's, Own its address.
	Interface string
	Own       netip.Addr
	// Results is the folder of CNI results.
	Results string
	Cluster Cluster
	// Changed gets a value when what Cluster returns may have changed.
	Changed <-chan struct{}
	Log     *slog.Logger
	// Guard detects changes of the table by other programs.
	Guard *nft.Guard

	exists func(veth string) bool // for tests
}

// Peer is one peer and the pods of this cluster there.
type Peer struct {
	ID peer.ID
	// Prefix is that of the peer's pods in this cluster's view, Control the peer's own address in it.
	Prefix  netip.Prefix
	Control netip.Addr
	// Pods is the number of unfinished pods of this cluster that were sent there.
	Pods int
	// Seen are their addresses by their statuses, Advertised those by the peer's offers, which come sooner. Known is
	// false until both were received in this run.
	Seen, Advertised []netip.Addr
	Known            bool
	// Neighbours are the peers that the peer has; nil: not known yet.
	Neighbours map[peer.ID]netip.Prefix
}

// ours are the addresses of pods of this cluster at the peer. before are those of the last table. Of the advertised
// addresses no more count than pods may have there, and only those in the peer's prefix.
func (p Peer) ours(before []netip.Addr) []netip.Addr {
	lists := [][]netip.Addr{p.Seen, p.Advertised}
	if !p.Known {
		lists = append(lists, before)
	}
	most := perPod * p.Pods
	if !p.Known {
		most = max(most, len(before)) // that many were counted when it was written
	}
	all := map[netip.Addr]bool{}
	for _, list := range lists {
		for _, a := range list {
			if len(all) < most && p.Prefix.Contains(a) && a != p.Control {
				all[a] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}

// Run maintains the table until ctx ends; the table stays.
func Run(ctx context.Context, cfg Config) error {
	if cfg.exists == nil {
		cfg.exists = podnet.Exists
	}
	files, err := podnet.NewWatch(cfg.Results)
	if err != nil {
		return fmt.Errorf("reach: %w", err)
	}
	defer files.Close()
	k := guard{Config: cfg, table: cfg.Guard.Tables(table.Table, table.Family), stale: true}
	if k.before, err = table.Standing(k.table.NetNS); err != nil {
		cfg.Log.Warn("what an earlier run let in is not known; pods that run away are heard again when their peers answer", "err", err)
	}
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		files.Check()
		cfg.Cluster.Report(k.pass())
		if !changes.Wait(ctx, pause) { // pods come in bursts
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cfg.Changed:
		case <-k.table.Changed():
		case _, ok := <-files.Events():
			if !ok {
				return errors.New("reach: the watch of CNI results has ended")
			}
			k.stale = true
		case <-files.Errors():
			k.stale = true
		case <-tick.C:
			k.stale = true
		}
		for drained := false; !drained; {
			select {
			case _, ok := <-files.Events():
				if !ok {
					return errors.New("reach: the watch of CNI results has ended")
				}
				k.stale = true
			default:
				drained = true
			}
		}
	}
}

// guard is the state between passes.
type guard struct {
	Config
	table   *nft.Tables
	stale   bool // pods have to be read again
	pods    []podnet.Pod
	tenants map[peer.ID][]netip.Addr // as reported last
	before  []netip.Addr             // Ours of the last table
	last    table.Rules
}

func (k *guard) pass() error {
	var failed error
	if k.stale {
		pods, err := podnet.Read(k.Results, k.exists)
		if err != nil {
			failed = fmt.Errorf("reach: %w", err)
		} else {
			k.pods, k.stale = pods, false
		}
	}
	now := k.rules()
	if k.table.Known() && reflect.DeepEqual(k.last, now) {
		return failed
	}
	k.table.Forget()
	if _, err := k.table.Apply([]nft.Program{table.Program(now)}); err != nil {
		return errors.Join(failed, table.Fault(err))
	}
	k.Log.Debug("reach is in force", "ours", len(now.Ours), "tenants", len(now.Tenants), "opened", len(now.Open))
	k.last, k.before = now, now.Ours
	return failed
}

// rules are the current rules. They do not depend on the order of maps.
func (k *guard) rules() table.Rules {
	r := table.Rules{Interface: k.Interface, Own: k.Own, Whole: k.Cluster.Whole(), Nodes: k.Cluster.Nodes(), Open: k.Cluster.Open()}
	of := map[peer.ID][]netip.Addr{}
	twins := k.Cluster.Twins()
	for _, p := range k.pods {
		if id, tenant := twins[p.Namespace]; tenant {
			of[id] = append(of[id], p.Addr)
			r.Tenants = append(r.Tenants, p.Addr)
		}
	}
	others := k.Cluster.Others()
	for _, id := range slices.Sorted(maps.Keys(others)) {
		of[id] = append(of[id], others[id]...)
		slices.SortFunc(of[id], netip.Addr.Compare)
		r.Tenants = append(r.Tenants, others[id]...)
	}
	if !reflect.DeepEqual(of, k.tenants) {
		k.tenants = of
		k.Cluster.SetTenants(of)
	}
	at, neighbours := map[peer.ID][]netip.Addr{}, map[peer.ID]map[peer.ID]netip.Prefix{}
	for _, p := range k.Cluster.Peers() {
		var before []netip.Addr
		for _, a := range k.before {
			if p.Prefix.Contains(a) {
				before = append(before, a)
			}
		}
		if ours := p.ours(before); len(ours) > 0 {
			at[p.ID] = ours
			if p.Neighbours != nil {
				neighbours[p.ID] = p.Neighbours
			}
			r.Ours = append(r.Ours, ours...)
		}
	}
	r.Through = k.Cluster.SetOurs(at, neighbours)
	slices.SortFunc(r.Ours, netip.Addr.Compare)
	return r
}
