package isolation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"rivulet/fabric/changes"
	"rivulet/fabric/nft"
	"rivulet/fabric/peer"
	"rivulet/offload/nodeagent/podnet"
)

// Held are the tenants by interface: those whose network is being made, and those that were tenants at any time while
// their interface existed. It outlives single runs of isolation.
//
// Interfaces of tenants have the consumer in their alias, so that a later supervisor identifies tenants whose namespace
// was deleted in the meantime.
type Held struct {
	exists    func(veth string) bool
	link      func(veth string) (netlink.Link, error)
	alias     func(l netlink.Link, text string) error
	requested chan struct{} // gets a value when a Hold waits
	moved     changes.Signal

	mu     sync.Mutex
	byVeth map[string]heldTenant
	last   int
	own    map[netip.Addr]bool // of pods that are no tenants
	waits  []wait
	// recalled is set once the aliases were read.
	recalled bool
}

type heldTenant struct {
	tenant
	order  int    // of arrival
	marked string // its alias
}

type wait struct {
	veth string
	done chan error
}

// NewHeld makes one without tenants.
func NewHeld() *Held {
	return &Held{exists: podnet.Exists, link: netlink.LinkByName, alias: netlink.LinkSetAlias, requested: make(chan struct{}, 1), byVeth: map[string]heldTenant{}}
}

// Hold returns when the pod is isolated as a tenant of the consumer, or with an error: then it must have no network.
func (h *Held) Hold(ctx context.Context, pod podnet.Pod, consumer peer.ID) error {
	done := make(chan error, 1)
	h.mu.Lock()
	h.know(pod, consumer)
	h.waits = append(h.waits, wait{pod.Veth, done})
	h.mu.Unlock()
	changes.Poke(h.requested)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("isolation: the rules of pods of other clusters were not made in time: %w; see rivulet status", context.Cause(ctx))
	}
}

// waiting takes the waiting Holds; each has to be answered.
func (h *Held) waiting() []wait {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.waits
	h.waits = nil
	return out
}

// answer sends them the result of a pass that began after they were taken.
func (h *Held) answer(waits []wait, err error) {
	for _, w := range waits {
		h.mu.Lock()
		_, known := h.byVeth[w.veth]
		h.mu.Unlock()
		if err == nil && !known {
			w.done <- errors.New("isolation: the interface of the pod has gone")
			continue
		}
		w.done <- err
	}
}

// tenants are the pods in twins, and all that were or will be tenants, by interface. If two have the same address, the
// newer one has it; the older has none then, and sends nothing.
func (h *Held) tenants(pods []podnet.Pod, twins map[string]peer.ID) []tenant {
	h.mu.Lock()
	defer h.mu.Unlock()
	for veth := range h.byVeth {
		if !h.exists(veth) {
			delete(h.byVeth, veth)
			h.moved.Notify()
		}
	}
	h.own = map[netip.Addr]bool{}
	for _, p := range pods {
		if id, hosted := twins[p.Namespace]; hosted {
			h.know(p, id)
		} else if id, was := h.recall(p.Veth); was {
			h.know(p, id)
		} else if _, was := h.byVeth[p.Veth]; !was {
			h.own[p.Addr] = true
		}
	}
	h.recalled = true
	all := slices.SortedFunc(maps.Values(h.byVeth), func(a, b heldTenant) int { return cmp.Compare(b.order, a.order) })
	taken := map[netip.Addr]bool{}
	out := make([]tenant, len(all))
	for i, g := range all {
		if taken[g.Addr] {
			g.Addr = netip.Addr{}
		}
		taken[g.Addr] = true
		out[i] = g.tenant
	}
	slices.SortFunc(out, func(a, b tenant) int { return cmp.Or(a.Addr.Compare(b.Addr), strings.Compare(a.Veth, b.Veth)) })
	return out
}

// Has reports whether the address is now that of a pod of the consumer on this device. Only the container network
// decides that: of two pods with one address the newer has it, and one without an interface has none.
func (h *Held) Has(consumer peer.ID, at netip.Addr) bool {
	h.mu.Lock()
	var veth string
	var newest heldTenant
	for v, g := range h.byVeth {
		if g.Addr == at && g.order > newest.order {
			veth, newest = v, g
		}
	}
	own := h.own[at]
	h.mu.Unlock()
	return newest.order > 0 && newest.Consumer == consumer && !own && h.exists(veth)
}

// Own reports whether the address is now that of a pod of this cluster on this device, and of no tenant. A pod that has
// just started is one after the next pass, at most some seconds later.
func (h *Held) Own(at netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.byVeth {
		if g.Addr == at {
			return false
		}
	}
	return h.own[at]
}

// Changed reports changes of Has.
func (h *Held) Changed() (<-chan struct{}, func()) { return h.moved.Changed() }

// know: mu is held.
func (h *Held) know(p podnet.Pod, consumer peer.ID) {
	g, known := h.byVeth[p.Veth]
	if !known {
		h.last++
		g.order = h.last
		h.moved.Notify()
	}
	g.tenant = tenant{Addr: p.Addr, Veth: p.Veth, MAC: p.MAC, Consumer: consumer}
	h.byVeth[p.Veth] = g
}

// recall reads the consumer that an earlier supervisor wrote to the interface; pods that started later have called
// Hold.
func (h *Held) recall(veth string) (peer.ID, bool) {
	if h.recalled {
		return "", false
	}
	l, err := h.link(veth)
	if err != nil {
		return "", false
	}
	id, was := strings.CutPrefix(l.Attrs().Alias, nft.TenantAlias)
	return peer.ID(id), was
}

// mark writes the consumer to the interfaces of tenants; an interface that is just gone needs none.
func (h *Held) mark(tenants []tenant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range tenants {
		known, ok := h.byVeth[g.Veth]
		if text := nft.TenantAlias + string(g.Consumer); ok && known.marked != text {
			if l, err := h.link(g.Veth); err == nil && h.alias(l, text) == nil {
				known.marked = text
				h.byVeth[g.Veth] = known
			}
		}
	}
}
