package burst

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"rivulet/offload/target/external"
)

// One namespace can have several addresses: a VPN's name and a public one, or one that has changed. Two targets of it would
// delete each other's objects. Targets with the same name of a namespace are therefore compared by the namespace's
// identity, which the campus is asked for: the first to use it keeps it, others are refused, and nothing is deleted there
// while a target may use it. Until the identities are known a further one waits.

var errUnsure = errors.New("it is not known yet whether that is the namespace of another target")

// identifyTimeout bounds one question for an identity.
const identifyTimeout = 10 * time.Second

// id is that of the target. It stays when the address changes.
func (e *entry) id() string { return external.ID(cmp.Or(e.Origin, e.Server), e.Settings.Namespace) }

func sameServer(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// sameAs reports whether both are one namespace; sure is false while that is not known.
func (e *entry) sameAs(o *entry) (same, sure bool) {
	switch {
	case e.Settings.Namespace != o.Settings.Namespace:
		return false, true
	case sameServer(e.Server, o.Server):
		return true, true
	}
	return e.Identity.Same(o.Identity)
}

// follow takes the place of had, which is the same target with another credential, address or settings; m.mu is held.
func (e *entry) follow(had *entry) {
	had.way.stop()
	e.Origin = had.Origin
	if !e.Identity.Known() {
		e.Identity = had.Identity
	}
}

func (e *entry) stopPurge() {
	if e.purge != nil {
		e.purge()
	}
}

// inOrder are the entries, those that were used first, then by name; m.mu is held.
func (m *Manager) inOrder() []*entry {
	return slices.SortedFunc(maps.Values(m.entries), func(a, b *entry) int {
		if (a.Origin == "") != (b.Origin == "") {
			return cmp.Compare(b.Origin, a.Origin) // the empty one last
		}
		return cmp.Compare(a.Settings.Name, b.Settings.Name)
	})
}

// choose decides which targets are used, and ends cleanups in their namespaces; m.mu is held.
func (m *Manager) choose() {
	var before []*entry
	for _, e := range m.inOrder() {
		e.double = nil
		if e.broken != nil && e.Origin == "" {
			continue
		}
		for _, o := range before {
			same, sure := e.sameAs(o)
			switch {
			case same:
				e.double = fmt.Errorf("namespace %s of %s is target %s already; remove one of them", e.Settings.Namespace, e.Server, o.Settings.Name)
			case !sure && e.double == nil:
				e.double = fmt.Errorf("%w, %s: both have to answer first; if that one is gone for good: rivulet burst remove %s --force", errUnsure, o.Settings.Name, o.Settings.Name)
			}
		}
		if e.double != nil {
			e.way.stop()
			e.way = nil
			continue
		}
		before = append(before, e)
		if e.broken != nil {
			continue
		}
		if e.Origin == "" {
			e.Origin = e.Server
			if slices.ContainsFunc(slices.Concat(m.inOrder(), m.leaving), func(o *entry) bool { return o != e && o.Origin != "" && o.id() == e.id() }) {
				e.Origin += "#" + e.Settings.Name // that of a target which has moved
			}
			m.kept()
		}
		for _, l := range m.leaving {
			if same, sure := l.sameAs(e); same || !sure {
				l.stopPurge()
			}
		}
		if m.running {
			m.join(e)
		}
	}
}

// kept saves the list, as far as that is possible; m.mu is held.
func (m *Manager) kept() {
	if err := m.save(); err != nil && m.unread == nil {
		m.cfg.Log.Warn("the list of burst targets cannot be kept", "err", err)
	}
}

// taken reports whether the namespace of a request is another target's, or not the one of the target that it replaces; is
// is nil before the target was asked for its identity.
func (m *Manager) taken(q Request, is *external.Identity) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &entry{record: record{Settings: q.Settings, Server: q.Credential.Server}}
	if is != nil {
		e.Identity = *is
	}
	for _, o := range m.inOrder() {
		same, sure := e.sameAs(o)
		switch name := o.Settings.Name; {
		case name != q.Settings.Name && same && sameServer(o.Server, e.Server):
			return fmt.Errorf("namespace %s of %s is target %s already; use that, or remove it first: rivulet burst remove %s", q.Settings.Namespace, e.Server, name, name)
		case name != q.Settings.Name && same:
			return fmt.Errorf("namespace %s of %s is target %s already, by the address %s; use that, or give it this address: rivulet burst add %s --kubeconfig FILE --replace", q.Settings.Namespace, e.Server, name, o.Server, name)
		case name == q.Settings.Name && is != nil && o.credential.Kubeconfig != nil && !same:
			if !sure {
				return fmt.Errorf("target %s has not answered at %s since this version runs, so it is not known whether %s leads to the same namespace; remove it first: rivulet burst remove %s", name, o.Server, e.Server, name)
			}
			return fmt.Errorf("target %s is namespace %s of %s; remove it before that name is another's: rivulet burst remove %s", name, o.Settings.Namespace, o.Server, name)
		}
	}
	return nil
}

// identify asks for the identities that decide about a target, and reports whether one is missing still.
func (m *Manager) identify(ctx context.Context) (unsure bool) {
	for _, e := range m.unidentified() {
		of := cmp.Or(e.next, e)
		asked, cancel := context.WithTimeout(ctx, identifyTimeout)
		is, err := external.Identify(asked, of.credential, of.Settings.Namespace)
		cancel()
		m.mu.Lock()
		switch {
		case m.entries[e.Settings.Name] != e || e.next != nil && e.next != of: // it has changed meanwhile
		case err != nil && of == e.next:
			e.doubt, unsure = fmt.Errorf("at its new address %s: %w", of.Server, err), true
		case err != nil:
			unsure = true
		case of == e.next:
			of.Identity = is
			m.move(e, of)
		default:
			e.Identity, m.stale = is, true
			m.kept()
		}
		m.mu.Unlock()
	}
	return unsure
}

// other reports whether there is another choice to be made than the present one.
func (m *Manager) other() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stale
}

// unidentified are the entries whose identity is needed: their address has changed, or others, removed ones included, have
// the same name of a namespace.
func (m *Manager) unidentified() (out []*entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.inOrder()
	for _, e := range all {
		if e.next != nil || e.broken == nil && !e.Identity.Known() && slices.ContainsFunc(slices.Concat(all, m.leaving), func(o *entry) bool {
			_, sure := e.sameAs(o)
			return !sure
		}) {
			out = append(out, e)
		}
	}
	return out
}

// move replaces an entry by the one with its new address: the same target if the namespace is, and else another, m.mu is
// held.
func (m *Manager) move(e, next *entry) {
	e.next = nil
	if same, _ := e.sameAs(next); same {
		next.follow(e)
		m.cfg.Log.Info("a burst target has another address", "name", e.Settings.Name, "server", next.Server, "was", e.Server)
	} else {
		m.retire(e)
	}
	m.entries[e.Settings.Name], m.stale = next, true
	m.kept()
}

// inUse reports whether another target uses the namespace of one that was removed. If none does, a target that is going to
// ends the cleanup by calling stop.
func (m *Manager) inUse(ctx context.Context, e *entry, stop func()) (bool, error) {
	for asked := false; ; asked = true {
		var unsure *entry
		m.mu.Lock()
		for _, o := range m.inOrder() {
			if o.Origin == "" {
				continue // never used
			}
			same, sure := e.sameAs(o)
			if same {
				m.mu.Unlock()
				return true, nil
			}
			if !sure {
				unsure = o
			}
		}
		if unsure == nil {
			e.purge = stop
		}
		known := e.Identity.Known()
		m.mu.Unlock()
		switch {
		case unsure == nil:
			return false, nil
		case asked || known:
			return false, fmt.Errorf("it may be the namespace of target %s, which has not answered yet", unsure.Settings.Name)
		}
		is, err := external.Identify(ctx, e.credential, e.Settings.Namespace)
		if err != nil {
			return false, err
		}
		m.mu.Lock()
		e.Identity = is
		m.mu.Unlock()
	}
}

func (m *Manager) purged(e *entry) {
	m.mu.Lock()
	e.purge = nil
	m.mu.Unlock()
}
