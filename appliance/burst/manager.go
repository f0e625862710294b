package burst

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/fabric/changes"
	"rivulet/offload/target"
	"rivulet/offload/target/external"
)

const (
	// evaluateEvery is the interval of checks of credentials' ends, and of reads of the configured files.
	evaluateEvery = time.Minute
	// checkTimeout bounds the checks of Add, purgeTimeout one attempt to clean up.
	checkTimeout, purgeTimeout = 45 * time.Second, 60 * time.Second
	// DefaultSettle is Config.Settle if that is not set.
	DefaultSettle = 10 * time.Second
)

// SetTargets is that of offload.Offload.
type SetTargets func(kind target.Kind, all []target.Spec, complete bool)

// Config is the input of New. Gateway may be nil.
type Config struct {
	Store   Store
	Key     ed25519.PrivateKey // of the device's identity
	Cluster string             // its ID
	Health  *health.Tracker
	// Gateway returns the gateway between home and pods at a target; nil: this build has none.
	Gateway func(id string, _ external.Settings, _ external.Credential) (Gateway, error)
	// Settle is the time after which a cleaned-up target is checked once more: requests sent before its removal are
	// completed then.
	Settle time.Duration
	// CheckEvery is the interval of checks of targets; zero is their default.
	CheckEvery time.Duration
	Log        *slog.Logger
}

// Manager manages the list. Its methods may be called concurrently.
type Manager struct {
	cfg    Config
	seal   seal
	poke   chan struct{}
	unread error // why the stored list could not be read; nil if it was

	mu      sync.Mutex
	entries map[string]*entry // by name
	leaving []*entry          // removed, but the target may still have objects
	set     SetTargets        // nil while offloading does not run
	wanted  []config.Burst    // of the configuration file
	running bool              // gateways run
	stale   bool              // offloading has been given another choice of targets than the present one
}

// entry is one target.
type entry struct {
	record
	credential external.Credential
	broken     error // why it cannot be used
	double     error // why it is not used beside others
	doubt      error // why the presently configured kubeconfig is not used
	health     external.Health
	next       *entry            // the configuration's with another address, until it is known which namespace that is
	now        external.Identity // as last asked for a comparison
	strange    bool              // another identity than the stored one was told
	clearing   sync.Mutex        // held during a cleanup
	stop       func()            // ends that; nil if there is none
	way        *way              // nil without a network
	cleared    time.Time         // when nothing was left of it, for the first time
}

// New reads the list. With one that cannot be read only targets of the configuration are used, and nothing is saved or
// added; the virtual nodes of all others stay.
func New(cfg Config) (*Manager, error) {
	if cfg.Settle == 0 {
		cfg.Settle = DefaultSettle
	}
	s, err := newSeal(cfg.Key)
	if err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg, seal: s, poke: make(chan struct{}, 1), entries: map[string]*entry{}}
	all, err := load(cfg.Store)
	if m.unread = err; err != nil {
		cfg.Log.Error("burst targets", "err", err) // a failure must not stop the device
	}
	used := map[string]bool{}
	for _, r := range all {
		e := &entry{record: r}
		if !e.New && e.Origin == "" { // of an older version, which used the first of an address
			e.New = r.Removed.IsZero() && used[e.id()]
			if !e.New {
				e.Origin = e.Server
			}
		}
		used[e.id()] = used[e.id()] || r.Removed.IsZero() && !e.New
		e.credential, e.broken = m.open(r)
		if !r.Removed.IsZero() {
			m.leaving = append(m.leaving, e)
			continue
		}
		m.entries[r.Settings.Name] = e
	}
	return m, nil
}

func (m *Manager) open(r record) (external.Credential, error) {
	plain, err := m.seal.open(r.Settings.Name, r.Sealed)
	if err != nil {
		return external.Credential{}, err
	}
	return external.Credential{Kubeconfig: plain, Namespace: r.Settings.Namespace, Server: r.Server}, nil
}

// Attach passes the targets to offloading, now and at each change.
func (m *Manager) Attach(set SetTargets) {
	m.mu.Lock()
	m.set = set
	m.mu.Unlock()
	m.publish()
}

// Configure sets the targets of the configuration file.
func (m *Manager) Configure(all []config.Burst) {
	m.mu.Lock()
	m.wanted = slices.Clone(all)
	m.mu.Unlock()
	if m.reread() {
		m.publish()
		m.wake()
	}
	m.evaluate()
}

// reread updates the entries of the configuration from it and the files that it names, and reports changes. An unusable
// kubeconfig does not replace the present one of a target, because it may be about to be replaced.
func (m *Manager) reread() (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[string]bool{}
	for _, c := range m.wanted {
		now[c.Name] = true
		had := m.entries[c.Name]
		if had != nil && !had.File {
			continue // an operator's entry takes precedence
		}
		e := m.configured(c)
		switch {
		case had == nil:
		case e.broken != nil && had.credential.Kubeconfig != nil:
			had.doubt = e.broken
			continue
		case had.same(e):
			had.doubt, had.next = nil, nil
			continue
		case e.broken == nil && had.credential.Kubeconfig != nil && had.Settings.Namespace != e.Settings.Namespace:
			m.retire(had)
		case e.broken == nil && had.credential.Kubeconfig != nil && !had.New && !sameServer(had.Server, e.Server):
			if had.next == nil || !had.next.same(e) {
				had.next, had.doubt = e, fmt.Errorf("its new address %s has not answered yet", e.Server)
				m.wake()
			}
			continue
		default:
			m.follow(e, had)
		}
		m.entries[c.Name] = e
		changed = true
	}
	for name, e := range m.entries {
		if e.File && !now[name] {
			m.retire(e)
			changed = true
		}
	}
	if changed {
		if err := m.save(); err != nil {
			m.cfg.Log.Warn("the list of burst targets cannot be kept", "err", err)
		}
	}
	return changed
}

func (e *entry) same(o *entry) bool {
	a, _ := external.Spec(external.Config{Settings: e.Settings, Credential: e.credential}) // broken ones differ by that
	b, _ := external.Spec(external.Config{Settings: o.Settings, Credential: o.credential})
	return a.Key == b.Key && fmt.Sprint(e.broken) == fmt.Sprint(o.broken)
}

// configured converts an entry of the file.
func (m *Manager) configured(c config.Burst) *entry {
	e := &entry{record: record{File: true, New: true}}
	e.Settings = external.Settings{Name: c.Name, Namespace: c.Namespace, Arch: c.Arch, Network: c.Network, Image: c.Image, Security: c.PodSecurity, Order: c.Order, Price: c.Price}
	err := external.Trusted(c.Kubeconfig) // it is read again and again, and may name a command
	var raw []byte
	if err == nil {
		raw, err = os.ReadFile(c.Kubeconfig)
	}
	if err == nil {
		e.credential, err = external.ReadCredential(raw, filepath.Dir(c.Kubeconfig), c.Context, c.Insecure)
	}
	if err == nil {
		e.Settings.Limits, err = external.Limits(c.Limits.String())
	}
	if e.Settings.Namespace == "" {
		e.Settings.Namespace = e.credential.Namespace
	}
	e.Server = e.credential.Server
	if done := e.Settings.Complete(); err == nil {
		err = done
	}
	e.broken = err
	if err == nil {
		e.Sealed = m.seal.close(c.Name, e.credential.Kubeconfig)
	}
	return e
}

// publish passes all usable targets to offloading.
func (m *Manager) publish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.choose()
	m.stale = false
	if m.set == nil {
		return
	}
	var specs []target.Spec
	complete := m.unread == nil // nodes of targets in a list that cannot be read stay
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		e := m.entries[name]
		if e.broken != nil || errors.Is(e.double, errUnsure) {
			complete = false // its node, if it has one from before, stays
			continue
		}
		if e.double != nil {
			continue
		}
		server := e.Server
		c := external.Config{ID: e.id(), Settings: e.Settings, Credential: e.credential, Cluster: m.cfg.Cluster, CheckEvery: m.cfg.CheckEvery, Received: func(h external.Health) { m.received(name, server, h) }}
		if e.Settings.Network != external.NetworkNone {
			c.Network = lane{m, name}
		}
		spec, err := external.Spec(c)
		if err != nil {
			e.broken = err
			continue
		}
		specs = append(specs, spec)
	}
	m.set(external.Kind, specs, complete)
}

func (m *Manager) received(name, server string, h external.Health) {
	m.mu.Lock()
	if e := m.entries[name]; e != nil && e.Server == server {
		e.health = h
		same, sure := e.Identity.Same(h.Identity)
		switch {
		case h.Identity.Known() && !e.Identity.Known():
			e.Identity = h.Identity // the first stays
			m.kept()
		case sure && !same && !e.strange:
			e.strange = true
			m.cfg.Log.Warn("a burst target's namespace is another than at first; it is used on", "name", name, "server", server, "namespace", e.Settings.Namespace)
		}
	}
	m.mu.Unlock()
	m.evaluate()
}

func (m *Manager) wake() {
	changes.Poke(m.poke)
}

// Run checks the targets until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.stopWays()
	m.mu.Lock()
	m.running = true
	m.mu.Unlock()
	m.publish()
	tick := time.NewTicker(evaluateEvery)
	defer tick.Stop()
	for {
		if m.reread() {
			m.publish()
		}
		unsure := m.identify(ctx)
		if m.other() {
			m.publish()
		}
		again := m.sweep(ctx) || unsure
		m.evaluate()
		var soon <-chan time.Time
		if again {
			soon = time.After(m.cfg.Settle)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-m.poke:
		case <-soon:
		}
	}
}

// Request is an operator's request for a target.
type Request struct {
	Settings   external.Settings   `json:"settings"`
	Credential external.Credential `json:"credential"`
	// Replace allows another credential or other settings for an existing name. Missing settings stay. It is not needed
	// if the target rejects the present credential.
	Replace bool `json:"replace,omitempty"`
}

// Added has the findings and the result of Add, for the command line.
type Added struct {
	external.Report
	Added bool `json:"added"`
}

// ErrUnfit is returned if the user lacks rights that are always needed.
var ErrUnfit = errors.New("rights are missing")

// Add adds a target, after a check of it. The findings are returned also with an error.
func (m *Manager) Add(ctx context.Context, q Request) (external.Report, error) {
	if m.unread != nil {
		return external.Report{}, m.unread
	}
	name := q.Settings.Name
	m.mu.Lock()
	had := m.entries[name]
	useless := false
	if had != nil {
		q.Settings = q.Settings.Or(had.Settings)
		useless = had.broken != nil || had.health.Refused
	}
	if err := q.Settings.Complete(); err != nil {
		m.mu.Unlock()
		return external.Report{}, err
	}
	m.mu.Unlock()
	e := &entry{record: record{Settings: q.Settings, Server: q.Credential.Server, Added: time.Now(), New: true}, credential: q.Credential}
	m.mu.Lock()
	err := m.taken(e, false)
	m.mu.Unlock()
	if err != nil {
		return external.Report{}, err
	}
	switch {
	case had != nil && had.File:
		return external.Report{}, fmt.Errorf("target %s is in the configuration file; change it there", name)
	case had != nil && !q.Replace && !useless:
		return external.Report{}, fmt.Errorf("there is a target %s already; choose another name, or give --replace for another credential or other settings", name)
	case had != nil && had.Settings.Namespace != q.Settings.Namespace:
		return external.Report{}, fmt.Errorf("target %s is namespace %s of %s; remove it before that name is another's: rivulet burst remove %s", name, had.Settings.Namespace, had.Server, name)
	case q.Settings.Network != external.NetworkNone && m.cfg.Gateway == nil:
		return external.Report{}, fmt.Errorf("this build has no gateway for network %s; use --network none", q.Settings.Network)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	report, err := external.Examine(ctx, q.Settings, q.Credential, m.cfg.Cluster)
	if err != nil {
		return report, err
	}
	if !report.Fit() {
		return report, ErrUnfit
	}
	e.Identity, e.now = report.Identity, report.Identity
	if had == nil || had.New {
		m.mu.Lock()
		rivals := m.rivals(e)
		m.mu.Unlock()
		m.compare(ctx, rivals)
	}
	e.Sealed = m.seal.close(name, q.Credential.Kubeconfig)
	m.mu.Lock()
	if err := m.taken(e, true); err != nil {
		m.mu.Unlock()
		return report, err
	}
	if had = m.entries[name]; had != nil {
		m.follow(e, had)
	}
	m.entries[name] = e
	m.choose()
	if e.double != nil {
		report.Notes = append(report.Notes, "it is not used: "+e.double.Error())
	}
	err = m.save()
	m.mu.Unlock()
	if err != nil {
		return report, fmt.Errorf("burst: %w", err)
	}
	m.cfg.Log.Info("burst target added", "name", name, "server", e.Server, "namespace", e.Settings.Namespace, "replaced", had != nil)
	m.publish()
	m.wake()
	return report, nil
}
