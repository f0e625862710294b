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
// delete each other's objects. A target that was never used is therefore compared with those in use that have the same name
// of a namespace, by what both campuses answer now: it is refused if it is the same, and waits while that is not known. No
// answer of a campus changes anything for a target in use.

var (
	errUnsure = errors.New("it is not known yet whether that is the namespace of another target")
	errKept   = errors.New("kept")
)

// identifyTimeout bounds one question for an identity.
const identifyTimeout = 10 * time.Second

// id is that of the target. It stays when the address changes.
func (e *entry) id() string { return external.ID(cmp.Or(e.Origin, e.Server), e.Settings.Namespace) }

func sameServer(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// sameAddress reports whether both are one namespace without a question.
func (e *entry) sameAddress(o *entry) bool {
	return e.Settings.Namespace == o.Settings.Namespace && sameServer(e.Server, o.Server)
}

// inOrder are the entries, those in use first, then by name; m.mu is held.
func (m *Manager) inOrder() []*entry {
	return slices.SortedFunc(maps.Values(m.entries), func(a, b *entry) int {
		if a.New != b.New {
			if b.New {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Settings.Name, b.Settings.Name)
	})
}

// rivals are the entries in use with e's name of a namespace, except the one that has e's name; m.mu is held.
func (m *Manager) rivals(e *entry) []*entry {
	return slices.DeleteFunc(m.inOrder(), func(o *entry) bool {
		return o.New || m.entries[e.Settings.Name] == o && e.Removed.IsZero() || o.Settings.Namespace != e.Settings.Namespace
	})
}

// doubles is why a new entry may not be used beside those in use; nil if it may; m.mu is held.
func (m *Manager) doubles(e *entry) (why error) {
	for _, o := range m.rivals(e) {
		name := o.Settings.Name
		same, sure := e.now.Same(o.now)
		// Both were read now, so neither ConfigMap is one created anew.
		apart := sure || e.now.Roots != "" && o.now.Roots != ""
		switch {
		case e.sameAddress(o):
			return fmt.Errorf("namespace %s of %s is target %s already; use that, or remove it first: rivulet burst remove %s", e.Settings.Namespace, e.Server, name, name)
		case same:
			return fmt.Errorf("namespace %s of %s is target %s already, by the address %s; use that, or remove it first: rivulet burst remove %s", e.Settings.Namespace, e.Server, name, o.Server, name)
		case !apart:
			why = fmt.Errorf("%w, %s: both have to answer, and their users to be allowed to read ConfigMap kube-root-ca.crt there; if that one is gone for good: rivulet burst remove %s --force", errUnsure, name, name)
		}
	}
	return why
}

// follow takes the place of had, which is the same target with another credential, address or settings; m.mu is held.
func (m *Manager) follow(e, had *entry) {
	had.way.stop()
	e.Origin, e.New = had.Origin, had.New
	if had.Identity.Known() && !had.New {
		e.Identity = had.Identity
	}
	if !e.New && !e.sameAddress(had) {
		m.interrupt(e)
	}
}

// interrupt ends cleanups of namespaces of e's name: they are to be judged again; m.mu is held.
func (m *Manager) interrupt(e *entry) {
	for _, l := range m.leaving {
		if l.stop != nil && l.Settings.Namespace == e.Settings.Namespace {
			l.stop()
		}
	}
}

// choose decides which new entries are used from now on; m.mu is held.
func (m *Manager) choose() {
	for _, e := range m.inOrder() {
		if e.broken != nil {
			continue
		}
		if e.New {
			if e.double = m.doubles(e); e.double != nil {
				continue
			}
			m.interrupt(e)
		}
		known := len(m.leaving)
		m.leaving = slices.DeleteFunc(m.leaving, func(l *entry) bool { // it is added again
			if l.sameAddress(e) && l.stop != nil {
				l.stop()
			}
			return l.sameAddress(e)
		})
		if e.New {
			e.New, e.Origin = false, e.Server
			if slices.ContainsFunc(slices.Concat(m.inOrder(), m.leaving), func(o *entry) bool { return o != e && !o.New && o.id() == e.id() }) {
				e.Origin += "#" + e.Settings.Name // that of a target which has moved
			}
			m.kept()
		} else if len(m.leaving) != known {
			m.kept()
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

// taken reports whether the namespace of a request is another target's, or not the one of the target that it replaces. e is
// the request's, examined or not yet; m.mu is held.
func (m *Manager) taken(e *entry, examined bool) error {
	had := m.entries[e.Settings.Name]
	for _, o := range m.inOrder() {
		if name := o.Settings.Name; o != had && e.sameAddress(o) {
			return fmt.Errorf("namespace %s of %s is target %s already; use that, or remove it first: rivulet burst remove %s", e.Settings.Namespace, e.Server, name, name)
		}
	}
	if !examined {
		return nil
	}
	if had == nil || had.New {
		if err := m.doubles(e); !errors.Is(err, errUnsure) {
			return err
		}
		return nil
	}
	if had.credential.Kubeconfig == nil || e.sameAddress(had) {
		return nil
	}
	switch same, sure := e.now.Same(had.Identity); {
	case same:
		return nil
	case !sure:
		return fmt.Errorf("it is not known whether %s leads to the namespace of target %s at %s; remove it first: rivulet burst remove %s", e.Server, e.Settings.Name, had.Server, e.Settings.Name)
	}
	return fmt.Errorf("target %s is namespace %s of %s; remove it before that name is another's: rivulet burst remove %s", e.Settings.Name, had.Settings.Namespace, had.Server, e.Settings.Name)
}

// query requests the identity.
func (e *entry) query(ctx context.Context) (external.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	return external.Identify(ctx, e.credential, e.Settings.Namespace)
}

// compare asks all for their present identities, and reports whether one is missing.
func (m *Manager) compare(ctx context.Context, all []*entry) (unsure bool) {
	for _, e := range all {
		now, err := e.query(ctx)
		unsure = unsure || err != nil || !now.Known()
		m.mu.Lock()
		if e.now != now {
			e.now, m.stale = now, true
		}
		if now.Known() && !e.Identity.Known() {
			e.Identity = now
			m.kept()
		}
		m.mu.Unlock()
	}
	return unsure
}

// identify asks for the identities that decide about new addresses and new targets, and reports whether one is missing
// still.
func (m *Manager) identify(ctx context.Context) (unsure bool) {
	var moving, waiting []*entry
	m.mu.Lock()
	for _, e := range m.inOrder() {
		if e.next != nil {
			moving = append(moving, e)
		}
		if e.New && errors.Is(e.double, errUnsure) {
			for _, of := range append(m.rivals(e), e) {
				if !slices.Contains(waiting, of) {
					waiting = append(waiting, of)
				}
			}
		}
	}
	m.mu.Unlock()
	for _, e := range moving {
		m.mu.Lock()
		next, known := e.next, e.Identity.Known()
		m.mu.Unlock()
		if next == nil {
			continue
		}
		if !known {
			m.compare(ctx, []*entry{e})
		}
		is, err := next.query(ctx)
		m.mu.Lock()
		if m.entries[e.Settings.Name] == e && e.next == next {
			unsure = m.move(e, next, is, err) || unsure
		}
		m.mu.Unlock()
	}
	return m.compare(ctx, waiting) || unsure
}

// other reports whether there is another choice to be made than the present one.
func (m *Manager) other() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stale
}

// move replaces an entry by the one with its new address if that leads to the same namespace, and retires it if that surely
// leads to another. Else it stays, with the reason, and soon reports whether it is to be asked soon. m.mu is held.
func (m *Manager) move(e, next *entry, is external.Identity, err error) (soon bool) {
	name := e.Settings.Name
	same, sure := is.Same(e.Identity)
	switch {
	case err != nil:
		e.doubt = fmt.Errorf("at its new address %s: %w", next.Server, err)
		return true
	case slices.ContainsFunc(m.rivals(e), next.sameAddress):
		e.doubt = fmt.Errorf("its new address %s is another target's; remove one of them", next.Server)
		return false
	case same:
		m.follow(next, e)
		m.cfg.Log.Info("a burst target has another address", "name", name, "server", next.Server, "was", e.Server)
	case !sure:
		e.doubt = fmt.Errorf("it is not known whether its new address %s leads to the same namespace; if it is to be used, give it another name in the configuration", next.Server)
		return false
	default:
		m.retire(e)
	}
	e.next = nil
	m.entries[name], m.stale = next, true
	m.kept()
	return false
}

// inUse is why a namespace may be one in use; nil if it surely is none.
func (e *entry) inUse(ctx context.Context, rivals []*entry) error {
	if len(rivals) == 0 {
		return nil
	}
	is, failed := e.query(ctx)
	for _, o := range rivals {
		now, err := o.query(ctx)
		if same, sure := is.Same(now); failed != nil || err != nil || same || !sure {
			name := o.Settings.Name
			return fmt.Errorf("%w: target %s may use that namespace; remove %s as well, let the users of both get namespace %s, or forget this one: rivulet burst remove %s --force", errKept, name, name, e.Settings.Namespace, e.Settings.Name)
		}
	}
	return nil
}
