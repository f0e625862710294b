package fabric

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/changes"
	"rivulet/fabric/discovery"
	"rivulet/fabric/ipam"
	"rivulet/fabric/pairing"
)

// setting is a value that may change while the fabric runs. Its lock is a leaf.
type setting[T comparable] struct {
	mu    sync.Mutex
	value T
}

func (s *setting[T]) get() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// set reports whether the value has changed.
func (s *setting[T]) set(value T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.value != value
	s.value = value
	return changed
}

// settings are all of them.
type settings struct {
	name    setting[string]
	renamed changes.Signal
	trust   setting[trustSetting]
	relays  setting[bool]         // peers may reach each other through this device
	stream  setting[uint16]       // one more port for streams; 0 is none
	block   setting[netip.Prefix] // of the prefixes of peers
}

type trustSetting struct {
	Policy
	group *pairing.GroupKey // nil except with ModeGroup
}

func (s *settings) policy() Policy           { return s.trust.get().Policy }
func (s *settings) group() *pairing.GroupKey { return s.trust.get().group }

func newSettings(cfg Config) *settings {
	s := &settings{}
	s.name.set(cfg.Name)
	s.trust.set(newTrust(cfg.Trust))
	s.relays.set(!cfg.NoRelay)
	s.block.set(orDefault(cfg.PeerCIDR))
	return s
}

// orDefault replaces the zero block by the default.
func orDefault(block netip.Prefix) netip.Prefix {
	if !block.IsValid() {
		return ipam.Default
	}
	return block
}

// newTrust derives the group's key, which takes a while.
func newTrust(p Policy) trustSetting {
	if p.Mode != pairing.ModeGroup || p.Secret == "" {
		return trustSetting{Policy: p}
	}
	key := pairing.NewGroupKey(p.Secret)
	return trustSetting{p, &key}
}

// SetName changes this cluster's name. Peers and the LAN are notified at once.
func (f *Fabric) SetName(name string) {
	if !f.settings.name.set(name) {
		return
	}
	f.settings.renamed.Notify()
	f.members.mu.Lock()
	f.names()
	f.members.changed.Notify()
	f.members.mu.Unlock()
	f.Refresh()
}

// announce announces this cluster until ctx ends or its name changes.
func (f *Fabric) announce(ctx context.Context, s discovery.Source) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renamed, stop := f.settings.renamed.Changed()
	defer stop()
	go func() {
		select {
		case <-ctx.Done():
		case <-renamed:
			cancel()
		}
	}()
	return s.Announce(ctx, discovery.Announcement{ID: f.cfg.Identity.ID, Name: f.settings.name.get(), Port: f.cfg.Port})
}

// SetPaths sets whether peers may reach each other through this device, and the additional TCP port for streams where
// UDP is blocked (0: none).
func (f *Fabric) SetPaths(relay bool, streamPort uint16) {
	relays, stream := f.settings.relays.set(relay), f.settings.stream.set(streamPort)
	if relays || stream {
		f.plane.kick()
		f.members.changed.Notify() // the reported neighbours depend on it
	}
}

// SetBrokers sets where members of the group meet that share no LAN; outside of a group they are not used.
func (f *Fabric) SetBrokers(brokers []broker.Address) { f.brokers.Set(brokers) }

// Brokers returns the state of the brokers in use.
func (f *Fabric) Brokers() []broker.Status { return f.brokers.Status() }

// SetPeerCIDR changes the block of the prefixes of peers (the zero value: the default one). Peers with a prefix of the
// old block get another in an exchange; their connections end.
func (f *Fabric) SetPeerCIDR(block netip.Prefix) {
	if f.settings.block.set(orDefault(block)) {
		f.CheckPrefixes()
	}
}

// SetTrust replaces the policy. Trusted peers stay; those by lan that prove the group's secret become members of the group.
func (f *Fabric) SetTrust(p Policy) {
	if f.settings.policy() == p {
		return
	}
	trust := newTrust(p)
	f.party.Between(func() { f.settings.trust.set(trust) })
	f.brokers.Again()
	f.members.mu.Lock()
	defer f.members.mu.Unlock()
	for _, m := range f.members.all {
		f.do(m, m.Reconsider(time.Now())) // the result may differ now
	}
}
