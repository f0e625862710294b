// Package network connects the fabric to a device: discovery sources, trust by configuration, operator decisions about
// other clusters, and the home of an image.
//
// It reads the configuration, and alone writes the WireGuard key's record in state.db. Restart: all of it is made again
// from these.
package network

import (
	"log/slog"
	"net/netip"

	"rivulet/appliance/config"
	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/dnssrv"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/discovery/static"
	"rivulet/fabric/netmon"
)

// Sources are the discovery sources: the LANs, and addresses in the configuration. They outlive a restart of the
// fabric.
type Sources struct {
	MDNS   *mdns.Source
	Static *static.Source
	DNS    *dnssrv.Source
}

// NewSources returns sources without addresses of the configuration.
func NewSources(lans *netmon.Monitor, log *slog.Logger) Sources {
	return Sources{
		MDNS:   mdns.New(lans, mdns.DefaultTiming, log),
		Static: static.New(),
		DNS:    dnssrv.New(dnssrv.Config{Changed: lans.Changed, Log: log}),
	}
}

// All are the sources for a fabric.
func (s Sources) All() []discovery.Source { return []discovery.Source{s.MDNS, s.Static, s.DNS} }

// Set sets the configured addresses.
func (s Sources) Set(peers []string) {
	var addrs []netip.AddrPort
	var queries []dnssrv.Query
	for _, text := range peers {
		switch w, err := config.ParsePeer(text); {
		case err != nil: // a checked configuration has none
		case w.Addr.IsValid():
			addrs = append(addrs, w.Addr)
		case w.Service != "":
			queries = append(queries, dnssrv.Query{Service: true, Name: w.Service})
		default:
			queries = append(queries, dnssrv.Query{Name: w.Host, Port: w.Port})
		}
	}
	s.Static.Set(addrs...)
	s.DNS.Set(queries...)
}
