// Package dnssrv is the discovery source for names in the DNS: SRV records that list the clusters of a site, and host
// names whose addresses may change.
//
// It queries the resolver periodically, and at once after a restart or a change of network. It writes nothing. A name
// that does not exist removes its entries; a DNS server that does not answer removes nothing. Problems lists the names
// that lead to no cluster, with the reason.
package dnssrv

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rivulet/fabric/discovery"
)

// Bounds of what one name can make this cluster store.
const (
	maxTargets = 64
	maxAddrs   = 8
)

type Query struct {
	// Service is whether Name has SRV records. Otherwise it is a host.
	Service bool
	Name    string
	// Port is the control port on a host; SRV records have their own.
	Port uint16
}

// String is the query as the user writes it.
func (q Query) String() string {
	if q.Service {
		return "srv:" + q.Name
	}
	return fmt.Sprintf("%s:%d", q.Name, q.Port)
}

// Resolver is the part of *net.Resolver that is used.
type Resolver interface {
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Timing is how often the DNS is queried.
type Timing struct {
	// Every is the time between two queries for a name; a change has to be reported within 30 s.
	Every   time.Duration
	Timeout time.Duration
}

// DefaultTiming leaves a third of the 30 s to slow servers.
var DefaultTiming = Timing{Every: 20 * time.Second, Timeout: 8 * time.Second}

type Config struct {
	// Resolver may be nil for the device's own: hosts file, resolv.conf, search path.
	Resolver Resolver
	Timing   Timing
	// Changed is netmon.Monitor.Changed: it receives when the device's networks have changed. It may be nil.
	Changed func() (<-chan struct{}, func())
	Log     *slog.Logger
}

// Source queries a list of names that can be replaced at any time.
type Source struct {
	cfg Config

	mu       sync.Mutex
	queries  []Query
	set      chan struct{} // closed when queries is replaced
	problems map[string]string
}

func New(cfg Config, queries ...Query) *Source {
	if cfg.Resolver == nil {
		cfg.Resolver = &net.Resolver{PreferGo: true}
	}
	if cfg.Timing.Every == 0 {
		cfg.Timing = DefaultTiming
	}
	return &Source{cfg: cfg, queries: queries, set: make(chan struct{}), problems: map[string]string{}}
}

func (s *Source) Set(queries ...Query) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.queries, queries) {
		return
	}
	s.queries = queries
	close(s.set)
	s.set = make(chan struct{})
}

func (s *Source) Name() string { return "dns" }

// Problems returns, by query, why a name leads to no cluster.
func (s *Source) Problems() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.problems)
}

// Announce only waits: the administrator of a zone decides what is in it.
func (s *Source) Announce(ctx context.Context, _ discovery.Announcement) error {
	<-ctx.Done()
	return nil
}

// Watch queries all names concurrently and reports changes.
func (s *Source) Watch(ctx context.Context, report func(discovery.Event)) error {
	var moved <-chan struct{}
	if s.cfg.Changed != nil {
		var stop func()
		moved, stop = s.cfg.Changed()
		defer stop()
	}
	found, last := map[Query]map[string]discovery.Entry{}, discovery.List{}
	for ctx.Err() == nil {
		s.mu.Lock()
		queries, set := slices.Clone(s.queries), s.set
		s.mu.Unlock()
		s.query(ctx, queries, found)
		if ctx.Err() != nil {
			return nil
		}
		now := map[string]discovery.Entry{}
		for _, entries := range found {
			maps.Copy(now, entries)
		}
		last.Report(now, report)
		var due <-chan time.Time
		if len(queries) > 0 {
			due = time.After(s.cfg.Timing.Every)
		}
		select {
		case <-ctx.Done():
		case <-set:
		case <-moved:
		case <-due:
		}
	}
	return nil
}
