// Package netmon finds the device's LAN interfaces and reports changes.
//
// It reads the kernel's links and addresses over netlink, by events without polling. It writes nothing. After a restart
// it reads everything again. If the kernel cannot be queried, it reports no LAN, logs why and retries: no peers are
// discovered, and known peers still work.
package netmon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rivulet/fabric/changes"
)

// settle is the wait after an event for those that follow: plugging in a cable makes a dozen.
const settle = 100 * time.Millisecond

// Monitor has the LANs of the kernel's last report. Its methods may be called concurrently, and before Run.
type Monitor struct {
	log     *slog.Logger
	reading sync.Mutex

	mu      sync.Mutex
	lans    LANs
	allowed []string // patterns of names; empty is all
	changed changes.Signal
}

// New returns a monitor that has read the interfaces once.
func New(log *slog.Logger) *Monitor {
	m := &Monitor{log: log}
	if err := m.read(); err != nil {
		log.Warn("cannot read interfaces", "err", err)
	}
	return m
}

// LANs returns the LAN interfaces of this moment, sorted by index.
func (m *Monitor) LANs() LANs {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lans
}

// Changed returns a channel that receives after every change of LANs, and a function that ends the subscription.
// Several changes may arrive as one.
func (m *Monitor) Changed() (<-chan struct{}, func()) { return m.changed.Changed() }

// Allow limits the LANs to interfaces with one of the names, or matching one of the patterns (path.Match); none is all
// LANs. A name without a wildcard is a LAN whatever its kind: the user decides.
func (m *Monitor) Allow(patterns []string) {
	m.mu.Lock()
	m.allowed = slices.Clone(patterns)
	m.mu.Unlock()
	if err := m.read(); err != nil {
		m.log.Warn("cannot read interfaces", "err", err)
	}
}

// Run follows the kernel until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	follow(ctx, m.log, settle, m.read,
		links(func(netlink.LinkUpdate) bool { return true }), addresses(func(netlink.AddrUpdate) bool { return true }))
	return nil
}

// read queries the kernel and notifies subscribers if the LANs have changed.
func (m *Monitor) read() error {
	m.reading.Lock() // otherwise an older result could be stored last
	defer m.reading.Unlock()
	m.mu.Lock()
	allowed := m.allowed
	m.mu.Unlock()
	lans, err := read(allowed)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	same := slices.EqualFunc(lans, m.lans, Interface.same)
	m.lans = lans
	if same {
		return nil
	}
	m.log.Info("LAN interfaces", "lans", names(lans))
	m.changed.Notify()
	return nil
}

func read(allowed []string) (LANs, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("netmon: list links: %w", err)
	}
	var lans LANs
	for _, l := range links {
		a := l.Attrs()
		flags := a.Flags
		if a.RawFlags&unix.IFF_RUNNING != 0 {
			flags |= net.FlagRunning
		}
		if !isLAN(a.Name, flags, allowed, wiring(links).leads(l)) {
			continue
		}
		addrs, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			continue // gone in the meantime; its event follows
		}
		i := Interface{Index: a.Index, Name: a.Name, MTU: a.MTU}
		i.take(addrs)
		if len(i.Addrs) > 0 {
			lans = append(lans, i)
		}
	}
	slices.SortFunc(lans, func(a, b Interface) int { return a.Index - b.Index })
	return lans, nil
}

// take sorts the addresses of the interface. Deprecated ones are all right where there are no others of their family.
func (i *Interface) take(addrs []netlink.Addr) {
	var temporary, deprecated []netip.Prefix
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		ones, _ := addr.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), ones)
		switch {
		case !ok:
		case addr.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0:
			i.further = append(i.further, p.Addr())
		case addr.Flags&unix.IFA_F_DEPRECATED != 0:
			deprecated = append(deprecated, p)
		case p.Addr().Is6() && addr.Flags&unix.IFA_F_TEMPORARY != 0: // in IPv4 the bit is that of a second address
			temporary = append(temporary, p)
		default:
			i.Addrs = append(i.Addrs, p)
		}
	}
	i.Addrs = append(i.Addrs, temporary...)
	others := slices.Clone(i.Addrs)
	for _, p := range deprecated {
		if slices.ContainsFunc(others, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() && !o.Addr().IsLinkLocalUnicast() }) {
			i.further = append(i.further, p.Addr())
		} else {
			i.Addrs = append(i.Addrs, p)
		}
	}
}

// dumpTries bounds the queries of a list that changes meanwhile: pods come and go.
const dumpTries = 20

// Dump returns a list that did not change while the kernel made it.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range dumpTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}

func names(lans LANs) []string {
	var out []string
	for _, i := range lans {
		for _, p := range i.Addrs {
			out = append(out, i.Name+" "+p.String())
		}
	}
	return out
}
