package burst

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"rivulet/offload/target/external"
)

// Removed is the result of a removal.
type Removed struct {
	// Gone counts the objects that were deleted at the target.
	Gone int `json:"gone"`
	// Waiting is why it could not be cleaned up now; it is retried, unless Forgotten.
	Waiting   string `json:"waiting,omitempty"`
	Forgotten bool   `json:"forgotten,omitempty"`
	// Kept: the namespace may be that of a target in use.
	Kept bool `json:"kept,omitempty"`
	// Server and Namespace are where objects may be left.
	Server    string `json:"server"`
	Namespace string `json:"namespace"`
	Cluster   string `json:"cluster"`
}

// Remove removes a target and deletes this cluster's objects there. If it does not answer that is retried, also after a
// restart; with force the target is forgotten instead.
func (m *Manager) Remove(ctx context.Context, name string, force bool) (Removed, error) {
	if m.unread != nil {
		return Removed{}, m.unread
	}
	m.mu.Lock()
	e := m.entries[name]
	at := slices.IndexFunc(m.leaving, func(l *entry) bool { return l.Settings.Name == name })
	switch {
	case e == nil && at < 0:
		m.mu.Unlock()
		return Removed{}, fmt.Errorf("there is no burst target %.60q; see: rivulet burst list", name)
	case e != nil && e.File:
		m.mu.Unlock()
		return Removed{}, fmt.Errorf("target %s is in the configuration file; remove it there", name)
	case e != nil:
		m.retire(e)
	default:
		e = m.leaving[at]
	}
	err := m.save()
	m.mu.Unlock()
	if err != nil {
		return Removed{}, fmt.Errorf("burst: %w", err)
	}
	m.publish()
	out := Removed{Server: e.Server, Namespace: e.Settings.Namespace, Cluster: m.cfg.Cluster}
	out.Gone, err = m.clear(ctx, e)
	if err != nil {
		out.Waiting, out.Kept = err.Error(), errors.Is(err, errKept)
	}
	if err != nil && force {
		out.Forgotten = true
		m.forget(e)
	}
	m.wake()
	return out, nil
}

// retire removes an entry from the list; m.mu is held.
func (m *Manager) retire(e *entry) {
	delete(m.entries, e.Settings.Name)
	e.way.stop()
	if e.credential.Kubeconfig == nil || e.New {
		return // it cannot be cleaned up, or was never used
	}
	e.File = false
	e.Removed = time.Now()
	e.Sealed = m.seal.close(e.Settings.Name, e.credential.Kubeconfig)
	m.leaving = append(m.leaving, e)
	m.cfg.Log.Info("burst target removed", "name", e.Settings.Name, "server", e.Server, "namespace", e.Settings.Namespace)
}

// clear deletes this cluster's objects at the target, unless a target in use may have its namespace: then that is the error.
func (m *Manager) clear(ctx context.Context, e *entry) (int, error) {
	e.clearing.Lock() // one at a time
	defer e.clearing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	m.mu.Lock()
	switch {
	case e.broken != nil && e.credential.Kubeconfig == nil:
		defer m.mu.Unlock()
		return 0, e.broken
	case !slices.Contains(m.leaving, e): // it was done meanwhile, or never used
		m.mu.Unlock()
		return 0, nil
	}
	e.stop = cancel // by a target that is used from now on
	rivals := m.rivals(e)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		e.stop = nil
		m.mu.Unlock()
	}()
	if err := e.inUse(ctx, rivals); err != nil {
		return 0, err
	}
	return external.Purge(ctx, e.credential, e.Settings.Namespace, m.cfg.Cluster)
}

// sweep continues removals, and reports whether there is more to do soon.
func (m *Manager) sweep(ctx context.Context) (soon bool) {
	m.mu.Lock()
	leaving := slices.Clone(m.leaving)
	m.mu.Unlock()
	for _, e := range leaving {
		n, err := m.clear(ctx, e)
		if ctx.Err() != nil {
			return false
		}
		m.mu.Lock()
		e.broken = err
		done := false
		switch {
		case err != nil:
			m.cfg.Log.Debug("a removed burst target is not cleaned up yet", "name", e.Settings.Name, "err", err)
		case n > 0 || e.cleared.IsZero():
			e.cleared, soon = time.Now(), true
		default:
			done = time.Since(e.cleared) >= m.cfg.Settle
			soon = soon || !done
		}
		m.mu.Unlock()
		if done {
			m.forget(e)
		}
	}
	return soon
}

func (m *Manager) forget(e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaving = slices.DeleteFunc(m.leaving, func(l *entry) bool { return l == e })
	if err := m.save(); err != nil {
		m.cfg.Log.Warn("the list of burst targets cannot be kept", "err", err)
	}
}
