package appliance

import (
	"rivulet/appliance/api"
	"rivulet/appliance/config"
	"rivulet/appliance/network"
)

func (s *System) config() config.Config { return s.settings.Now().Config }

// name is the cluster's for its peers.
func (s *System) name() string { return s.settings.Name() }

// withheld are the hosts of registries for which the owner's credentials are used: containerd would use them for every
// client.
func (s *System) withheld() []string { return s.config().Registries.Withheld() }

// peerImages reports whether images pass between clusters.
func (s *System) peerImages() bool { return s.config().ImagesPass() }

// apply passes the configuration in force to every running component.
func (s *System) apply(set config.Config) {
	s.lans.Allow(set.LAN.Interfaces)
	s.sources.Set(set.Peers)
	if fab := s.fabric.Load(); fab != nil {
		fab.SetTrust(s.worker.Policy(network.Policy(s.settings.Now())))
		fab.SetBrokers(network.Brokers(s.settings.Now()))
		fab.SetName(s.name())
		network.SetBlock(fab, s.nodes.PeerBlock(), s.worker.Ranges(s.netpol))
		fab.SetPaths(set.Tunnel.Relays(), uint16(set.Tunnel.StreamPort))
	}
	if off := s.offload.Load(); off != nil {
		off.SettingsChanged()
		s.services.SettingChanged()
	}
	s.ingress.Load().Switch(set.Ingress)
	s.burst.Configure(set.Burst)
	s.console.Configure(set, s.hostNames())
	s.metrics.Configure(set.Metrics)
	s.nodes.Configured()
	s.supervisor.Changed()
}

func (s *System) configuration() api.Configuration {
	return api.Configuration{Follower: s.settings, Engine: s.supervisor}
}
