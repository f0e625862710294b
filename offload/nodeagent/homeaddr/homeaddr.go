// Package homeaddr lets pods that run here for another cluster use the addresses of their home: a stateless table
// inside the network namespace of each such pod translates them (docs/design/addresses.md). Nothing outside the
// namespace changes. It reads the reflected Services of each consumer, how its home sees pods, and CNI results. It
// alone writes the tables "rivulet-home", addresses and routes in the namespaces of these pods, and the files of Write.
// Restart: the tables stay, and are found by the pods' interfaces. Failure: closed, since such a pod gets no network
// before Hold has returned without an error; a table that cannot be written stays unchanged, with the problem
// "addresses of home".
package homeaddr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"

	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
)

// Table is the name of the table in a pod's network namespace.
const Table = "rivulet-home"

// Most bounds the Services of one consumer.
const Most = 2000

// checkEvery is the interval in which pods that are gone are dropped, and failures retried.
const checkEvery = 15 * time.Second

// Services maps Services at home to the cluster IPs of their twins here. Different addresses have different twins.
type Services map[At]netip.Addr

// At is the location of a Service at home: a cluster IP with all its ports, or a node port.
type At struct {
	Addr     netip.Addr
	Protocol byte   // of a node port, as in IPv4's header; otherwise 0
	Port     uint16 // the node port, or 0
}

// Cluster is the location of a Service at a cluster IP.
func Cluster(ip netip.Addr) At { return At{Addr: ip} }

// Config are the inputs of Run. All fields are required.
type Config struct {
	// Results is the folder of CNI results.
	Results string
	// Twins returns the consumer of each twin namespace.
	Twins func() map[string]peer.ID
	// Services are those of a consumer; at most Most are used.
	Services func(peer.ID) Services
	// View is how a consumer sees pods; nil without a link to it.
	View func(peer.ID) View
	// Changed gets a value when one of these may have changed.
	Changed <-chan struct{}
	// Report is called after each pass; nil is success.
	Report func(error)
	Log    *slog.Logger
}

// Pods are the pods whose network namespaces have the table. They outlive a single Run.
type Pods struct {
	dns      netip.Addr
	services netip.Prefix
	open     func(veth string) (*os.File, error) // opens the namespace at the other end

	known chan struct{} // closed once the Services are loaded

	mu     sync.Mutex
	cfg    *Config // of the run
	byVeth map[string]*pod
	found  bool // tables of an earlier run were searched for
}

type pod struct {
	consumer peer.ID
	here     netip.Addr
	lives    bool // with home's addresses: not only Services are translated
	tables   nft.Tables
	now      *state // the written content; nil: unknown
}

// New makes Pods without any. dns is the cluster IP of cluster DNS, services the Service range of this cluster.
func New(dns netip.Addr, services netip.Prefix) *Pods {
	return &Pods{dns: dns, services: services.Masked(), open: podnet.Namespace, known: make(chan struct{}), byVeth: map[string]*pod{}}
}

// Hold returns when the pod has the table, or with an error: then it must have no network. lives: the pod has its
// address at home itself; own is that address.
func (p *Pods) Hold(ctx context.Context, made podnet.Pod, consumer peer.ID, lives bool) (own netip.Addr, err error) {
	select {
	case <-p.known:
	case <-ctx.Done():
		return own, fmt.Errorf("homeaddr: the Services of the pod's home were not known in time: %w; see rivulet status", context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	one := newPod(consumer, made.Addr, lives)
	if err := p.write(made.Veth, one); err != nil {
		return own, err
	}
	p.byVeth[made.Veth] = one
	return one.now.own.Home.Addr(), nil
}

func newPod(consumer peer.ID, here netip.Addr, lives bool) *pod {
	families := []nftables.TableFamily{nftables.TableFamilyIPv4}
	if lives {
		families = append(families, nftables.TableFamilyARP)
	}
	return &pod{consumer: consumer, here: here, lives: lives, tables: nft.Tables{Name: Table, Families: families}}
}

// Lives reports whether this kernel supports pods with home's addresses.
func Lives() bool {
	c, err := nft.Open(0)
	if err != nil {
		return false
	}
	t := &nftables.Table{Name: Table, Family: nftables.TableFamilyARP}
	c.AddTable(t)
	one := netip.MustParsePrefix("127.0.0.1/32")
	answers(Pair{one, one}).Base(c, t)
	c.DelTable(t) // in the same transaction
	return c.Flush() == nil
}

// Run maintains the tables until ctx ends; the tables stay.
func (p *Pods) Run(ctx context.Context, cfg Config) error {
	p.mu.Lock()
	p.cfg = &cfg
	p.mu.Unlock()
	select {
	case <-p.known:
	default:
		close(p.known)
	}
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		cfg.Report(p.pass())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-cfg.Changed:
		case <-tick.C:
		}
	}
}

func (p *Pods) pass() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed error
	if !p.found {
		failed = p.find()
		p.found = failed == nil
	}
	for _, veth := range slices.Sorted(maps.Keys(p.byVeth)) {
		one := p.byVeth[veth]
		if err := p.write(veth, one); errors.Is(err, podnet.ErrGone) {
			delete(p.byVeth, veth)
		} else if err != nil {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// find adopts the pods to which an earlier supervisor has given the table; mu is held.
func (p *Pods) find() error {
	all, err := podnet.Read(p.cfg.Results, func(string) bool { return true })
	if err != nil {
		return fmt.Errorf("homeaddr: %w", err)
	}
	twins := p.cfg.Twins()
	for _, made := range all {
		consumer, tenant := twins[made.Namespace]
		if _, known := p.byVeth[made.Veth]; !tenant || known {
			continue
		}
		ns, err := p.open(made.Veth)
		if errors.Is(err, podnet.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		n, err := nft.Stand(int(ns.Fd()), Table, nftables.TableFamilyIPv4, nftables.TableFamilyARP)
		ns.Close()
		if err != nil {
			return fault(err)
		}
		if n > 0 {
			p.byVeth[made.Veth] = newPod(consumer, made.Addr, n > 1)
		}
	}
	return nil
}

// write writes the pod's table with the current content; mu is held.
func (p *Pods) write(veth string, one *pod) error {
	now := state{services: p.cfg.Services(one.consumer)}
	if now.services == nil {
		now.services = Services{}
	}
	ns, err := p.open(veth) // fails if the pod is gone
	if err != nil {
		return err
	}
	defer ns.Close()
	if one.lives {
		now.view = p.cfg.View(one.consumer)
		own, ok := now.view.ToHome(one.here)
		if !ok {
			return fmt.Errorf("homeaddr: it is not known how cluster %s sees the pods of this one; wait for the link, or peer again: rivulet peers", one.consumer.Short())
		}
		now.own = Pair{netip.PrefixFrom(own, 32), netip.PrefixFrom(one.here, 32)}
	}
	if one.now != nil && reflect.DeepEqual(*one.now, now) {
		return nil
	}
	if one.lives {
		if err := live(ns, now.own.Home.Addr(), p.cfg.Log); err != nil {
			return err
		}
	}
	if one.now == nil || !reflect.DeepEqual(one.now.view, now.view) {
		one.tables.Forget() // the rules differ, not only the content of maps
	}
	one.tables.NetNS = int(ns.Fd())
	if _, err := one.tables.Apply(p.programs(now)); err != nil {
		one.now = nil
		return fault(err)
	}
	one.now = &now
	return nil
}

func fault(err error) error {
	return fmt.Errorf("homeaddr: nftables: %w; see that the kernel has NF_TABLES_IPV4 and NF_TABLES_ARP: rivulet doctor --only kernel", err)
}
