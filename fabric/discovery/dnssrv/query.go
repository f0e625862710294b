package dnssrv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"rivulet/fabric/discovery"
)

// query queries every name and updates found. Entries of a failed query stay.
func (s *Source) query(ctx context.Context, queries []Query, found map[Query]map[string]discovery.Entry) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timing.Timeout)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	problems := map[string]string{}
	known := map[Query]map[string]discovery.Entry{}
	for _, q := range queries {
		known[q] = found[q]
	}
	for q := range known {
		all.Go(func() {
			entries, err := s.resolve(ctx, q, known[q])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems[q.String()] = err.Error()
			}
			if entries != nil {
				found[q] = entries
			}
		})
	}
	all.Wait()
	for q := range found {
		if !slices.Contains(queries, q) {
			delete(found, q)
		}
	}
	if ctx.Err() == context.Canceled {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for q, why := range problems {
		if s.problems[q] != why {
			s.cfg.Log.Warn("a name leads to nobody", "name", q, "err", why)
		}
	}
	s.problems = problems
}

// resolve returns the entries of a query by key, nil if the DNS did not answer. An error may come with entries: those
// of the targets that have an address.
func (s *Source) resolve(ctx context.Context, q Query, before map[string]discovery.Entry) (map[string]discovery.Entry, error) {
	if !q.Service {
		addrs, err := s.addresses(ctx, q.Name)
		return hold(q, before, map[string][]uint16{q.Name: {q.Port}}, map[string]answer{q.Name: {addrs, err}})
	}
	_, records, err := s.cfg.Resolver.LookupSRV(ctx, "", "", q.Name)
	if gone(err) {
		return map[string]discovery.Entry{}, fmt.Errorf("the DNS has no SRV records of %s; add them to the zone, or remove the name", q.Name)
	}
	if len(records) == 0 && err != nil {
		return nil, fmt.Errorf("the SRV records of %s cannot be asked for (%s); look at the DNS servers of this device", q.Name, plain(err))
	}
	ports := map[string][]uint16{}
	for _, r := range records {
		target := strings.ToLower(strings.TrimSuffix(r.Target, "."))
		if target == "" || r.Port == 0 { // RFC 2782: "." means that there is no such service
			continue
		}
		if _, ok := ports[target]; !ok && len(ports) == maxTargets {
			continue
		}
		if !slices.Contains(ports[target], r.Port) && len(ports[target]) < maxAddrs {
			ports[target] = append(ports[target], r.Port)
		}
	}
	answers := map[string]answer{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for target := range ports {
		slices.Sort(ports[target]) // the DNS shuffles
		all.Go(func() {
			addrs, err := s.addresses(ctx, target)
			mu.Lock()
			defer mu.Unlock()
			answers[target] = answer{addrs, err}
		})
	}
	all.Wait()
	return hold(q, before, ports, answers)
}

// answer is what the DNS has of one host.
type answer struct {
	addrs []netip.Addr
	err   error
}

// hold makes the entries. The old entry of a host stays if its query failed.
func hold(q Query, before map[string]discovery.Entry, ports map[string][]uint16, answers map[string]answer) (map[string]discovery.Entry, error) {
	out := map[string]discovery.Entry{}
	var problem error
	for target, a := range answers {
		key := q.String() + "/" + target
		switch old, had := before[key]; {
		case gone(a.err):
			problem = fmt.Errorf("the DNS has no address of %s; add one to the zone, or remove the name", target)
		case a.err != nil && had:
			out[key] = old
			problem = fmt.Errorf("%s cannot be asked for (%s), and its last address is used; look at the DNS servers of this device", target, plain(a.err))
		case a.err != nil:
			problem = fmt.Errorf("%s cannot be asked for (%s); look at the DNS servers of this device", target, plain(a.err))
		default:
			e := discovery.Entry{Key: key}
			for _, addr := range a.addrs {
				for _, port := range ports[target] {
					e.Addrs = append(e.Addrs, netip.AddrPortFrom(addr, port))
				}
			}
			out[key] = e
		}
	}
	return out, problem
}

// addresses returns the possible addresses of a cluster, IPv4 first, always in the same order.
func (s *Source) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	addrs, err := s.cfg.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.IsUnspecified() || a.IsMulticast() })
	slices.SortFunc(addrs, func(a, b netip.Addr) int {
		if a.Is4() != b.Is4() {
			if a.Is4() {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	addrs = slices.Compact(addrs)
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no usable address", Name: host, IsNotFound: true}
	}
	return addrs[:min(len(addrs), maxAddrs)], nil
}

// gone reports whether the DNS has answered that the name does not exist.
func gone(err error) bool {
	var e *net.DNSError
	return errors.As(err, &e) && e.IsNotFound
}

func plain(err error) string {
	var e *net.DNSError
	if errors.As(err, &e) {
		return e.Err
	}
	return err.Error()
}
