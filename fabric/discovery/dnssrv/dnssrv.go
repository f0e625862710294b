// Package dnssrv is the discovery source for names in the DNS: SRV records that
// list the clusters of a site, and plain host names whose addresses may change.
//
// It reads the DNS through the resolver that it is given, again and again, and
// writes nothing. After a restart, and when the device gets another network, it
// asks at once. A name that the DNS says is not there takes its entries away; a DNS
// that does not answer takes nothing away, since it says nothing of the clusters.
// The user sees why a name is of no use in Problems.
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

// What one name can make us remember.
const (
	maxTargets = 64
	maxAddrs   = 8
)

// Query is a name to ask for.
type Query struct {
	// Service says that Name has SRV records. Else it is a host.
	Service bool
	Name    string
	// Port is the control port on a host; SRV records bring their own.
	Port uint16
}

// String is the query as the user writes it.
func (q Query) String() string {
	if q.Service {
		return "srv:" + q.Name
	}
	return fmt.Sprintf("%s:%d", q.Name, q.Port)
}

// Resolver is what is needed of *net.Resolver.
type Resolver interface {
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Timing is how often the DNS is asked.
type Timing struct {
	// Every is the time between two looks at a name; a change is to be told within 30 s.
	Every time.Duration
	// Timeout bounds one look.
	Timeout time.Duration
}

// DefaultTiming leaves a third of the 30 s to slow servers.
var DefaultTiming = Timing{Every: 20 * time.Second, Timeout: 8 * time.Second}

// Config is what a source is made of.
type Config struct {
	// Resolver may be nil for the device's own: hosts file, resolv.conf, search path.
	Resolver Resolver
	Timing   Timing
	// Changed is the form of netmon.Monitor.Changed: it tells that the device's networks
	// are others. It may be nil.
	Changed func() (<-chan struct{}, func())
	Log     *slog.Logger
}

// Source asks for a list of names that can be replaced at any time.
type Source struct {
	cfg Config

	mu       sync.Mutex
	queries  []Query
	set      chan struct{} // closed when queries is replaced
	problems map[string]string
}

// New returns a source of the names.
func New(cfg Config, queries ...Query) *Source {
	if cfg.Resolver == nil {
		cfg.Resolver = &net.Resolver{PreferGo: true}
	}
	if cfg.Timing.Every == 0 {
		cfg.Timing = DefaultTiming
	}
	return &Source{cfg: cfg, queries: queries, set: make(chan struct{}), problems: map[string]string{}}
}

// Set replaces the list.
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

// Name returns "dns".
func (s *Source) Name() string { return "dns" }

// Problems says, by query, why a name leads to nobody.
func (s *Source) Problems() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.problems)
}

// Announce waits: what is in a zone is its administrator's to say.
func (s *Source) Announce(ctx context.Context, _ discovery.Announcement) error {
	<-ctx.Done()
	return nil
}

// Watch asks all names at the same time and tells what is new.
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
