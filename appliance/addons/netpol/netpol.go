// Package netpol enforces NetworkPolicies on the pods of this device: this cluster's, and in twins those of the
// tenants' clusters.
//
//	pod ─▶ egress (rules of its policies) ─▶ ingress (rules of the receiver's policies) ─▶ pod
//
// It reads the World of policies, pods and namespaces (offload/networkpolicy) and the container network's results for this
// device's pods, which exist before a pod's first process. It alone writes the nftables tables "rivulet-policies": one
// of IPv4, which decides, and one of the bridge, which restricts selected pods to their own address and to IPv4. The
// tables only drop: they never allow what isolation or the host firewall forbid.
//
// Restart: the tables stay meanwhile, and are replaced in one transaction after everything was read again. Changes by
// others are reverted (nft.Guard). Without policies there are no tables, and only policies are watched. Failure: the
// problem "network-policy".
package netpol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"time"

	"github.com/fsnotify/fsnotify"

	"rivulet/fabric/changes"
	"rivulet/fabric/nft"
	"rivulet/offload/networkpolicy"
	"rivulet/offload/nodeagent/podnet"
)

// Table is the name of both tables.
const Table = "rivulet-policies"

// checkEvery is the interval of checks that packets between pods pass the rules.
const checkEvery = 15 * time.Second

// World is the source of policies; networkpolicy.Watcher is one.
type World interface {
	World() (networkpolicy.World, bool)
	Changed() (<-chan struct{}, func())
}

// Config is the input of Run. All fields are required.
type Config struct {
	World World
	// Results is the folder of CNI results.
	Results string
	// Guard detects changes of the tables by others.
	Guard *nft.Guard
	// Report is called after each pass; nil is success.
	Report func(error)
	Log    *slog.Logger

	exists  func(veth string) bool // for tests
	bridged func() bool            // for tests
}

// Run enforces until ctx ends, and leaves the tables.
func Run(ctx context.Context, cfg Config) error {
	if cfg.exists == nil {
		cfg.exists = podnet.Exists
	}
	if cfg.bridged == nil {
		cfg.bridged = podnet.Bridged
	}
	e := &enforcer{Config: cfg, kernel: cfg.Guard.Tables(Table, families...), known: map[string]networkpolicy.Pod{}}
	defer e.unwatch()
	changed, stop := cfg.World.Changed()
	defer stop()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		begun := time.Now()
		cfg.Report(e.pass())
		if !rest(ctx, time.Since(begun)) {
			return ctx.Err()
		}
		var events <-chan fsnotify.Event
		var errs <-chan error
		if e.files != nil {
			events, errs = e.files.Events(), e.files.Errors()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-e.kernel.Changed():
		case _, ok := <-events:
			if !ok {
				return errors.New("enforce: the watch of CNI results has ended")
			}
		case <-errs:
		case <-tick.C:
		}
	}
}

// rest collects changes after a long pass, so that many policies, of a tenant for example, use a part of one CPU and
// not all of it.
func rest(ctx context.Context, took time.Duration) bool {
	pause := min(4*took, 2*time.Second)
	if pause < 10*time.Millisecond {
		return ctx.Err() == nil
	}
	return changes.Wait(ctx, pause)
}

type enforcer struct {
	Config
	kernel *nft.Tables
	files  *podnet.Watch                // only while there are policies
	known  map[string]networkpolicy.Pod // pods with a network here, by UID
	seen   input                        // input of the present tables
}

// input is everything that the tables depend on.
type input struct {
	World networkpolicy.World
	Local []podnet.Pod
}

// pass updates the tables.
func (e *enforcer) pass() error {
	w, ok := e.World.World()
	if !ok {
		return nil // those of an earlier run stay until their input is known
	}
	if len(w.Policies) == 0 {
		e.unwatch()
		clear(e.known)
		e.seen = input{}
		return e.kernel.Clear()
	}
	if e.files == nil {
		files, err := podnet.NewWatch(e.Results)
		if err != nil {
			return fmt.Errorf("enforce: %w", err)
		}
		e.files = files
	}
	e.files.Check()
	local, err := podnet.Read(e.Results, e.exists)
	if err != nil {
		return fmt.Errorf("enforce: %w", err)
	}
	now := input{w, local}
	if e.kernel.Known() && reflect.DeepEqual(e.seen, now) {
		return e.blind()
	}
	w = e.overlay(w, local)
	plan := networkpolicy.Compile(w)
	begun := time.Now()
	changes, err := e.kernel.Apply(write(plan, local))
	if err != nil {
		e.seen = input{}
		return fmt.Errorf("enforce: nftables: %w; see that the kernel has NF_TABLES_IPV4, NF_TABLES_BRIDGE and NFT_CT: rivulet doctor --only kernel", err)
	}
	e.seen = now
	e.Log.Debug("network policies are in force", "policies", len(w.Policies), "ingress", len(plan.Ingress), "egress", len(plan.Egress), "messages", changes, "took", time.Since(begun))
	return e.blind()
}

func (e *enforcer) unwatch() {
	if e.files != nil {
		e.files.Close()
		e.files = nil
	}
}

// blind returns an error if packets between two pods of this node bypass the rules.
func (e *enforcer) blind() error {
	if e.bridged() {
		return nil
	}
	return errors.New("enforce: the kernel shows no packets between pods of this device to the rules; modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1")
}

// overlay sets the container network's addresses of this device's pods, and keeps pods that are deleted at the API
// server (a forced deletion) as long as they have a network. An address belongs to the pod whose network has it.
func (e *enforcer) overlay(w networkpolicy.World, local []podnet.Pod) networkpolicy.World {
	here := map[string]netip.Addr{}
	owner := map[netip.Addr]string{}
	for _, p := range local {
		if p.UID != "" {
			here[p.UID], owner[p.Addr] = p.Addr, p.UID
		}
	}
	said := map[string]bool{}
	for _, p := range w.Pods {
		said[p.UID] = true
		if _, ok := here[p.UID]; ok {
			e.known[p.UID] = p
		}
	}
	pods := make([]networkpolicy.Pod, 0, len(w.Pods))
	for _, p := range w.Pods {
		if a, ok := here[p.UID]; ok {
			p.Addr = a
		} else if uid, taken := owner[p.Addr]; taken && (said[uid] || e.known[uid].UID != "") {
			p.Addr = netip.Addr{}
		}
		pods = append(pods, p)
	}
	for uid, p := range e.known {
		switch a, ok := here[uid]; {
		case !ok:
			delete(e.known, uid)
		case !said[uid]:
			p.Addr = a
			pods = append(pods, p)
		}
	}
	w.Pods = pods
	return w
}

// Try creates tables with every kind of rule in the calling thread's network namespace, to check that the kernel
// accepts them.
func Try() error {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	plan := networkpolicy.Plan{Ingress: map[netip.Addr]string{a: "class"}, Classes: map[string][]string{"class": {"chain"}},
		Chains: map[string][]networkpolicy.Rule{"chain": {{Peers: "pods", Protocol: "TCP", Low: 80, High: 90}, {Peers: "blocks"}, {Sockets: "ports"}}},
		Sets: networkpolicy.Sets{Addrs: map[string][]netip.Addr{"pods": {b}}, Ranges: map[string][]networkpolicy.Range{"blocks": {{First: a, Last: b}}},
			Sockets: map[string][]networkpolicy.Socket{"ports": {{Addr: a, Protocol: "TCP", Port: 80}}}}}
	k := nft.Tables{Name: Table, Families: families}
	_, err := k.Apply(write(plan, []podnet.Pod{{Addr: a, Veth: "veth0"}}))
	return err
}
