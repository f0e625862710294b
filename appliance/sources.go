package appliance

import (
	"log/slog"
	"net/netip"
	"strings"

	"rivulet/appliance/config"
	"rivulet/appliance/health"
	"rivulet/fabric/discovery"
	"rivulet/fabric/discovery/dnssrv"
	"rivulet/fabric/discovery/mdns"
	"rivulet/fabric/discovery/static"
	"rivulet/fabric/netmon"
)

// sources are where clusters are looked for: the LANs, and what the configuration
// names. They outlive a fabric that is started again.
type sources struct {
	mdns   *mdns.Source
	static *static.Source
	dns    *dnssrv.Source
}

func newSources(lans *netmon.Monitor, log *slog.Logger) sources {
	return sources{
		mdns:   mdns.New(lans, mdns.DefaultTiming, log),
		static: static.New(),
		dns:    dnssrv.New(dnssrv.Config{Changed: lans.Changed, Log: log}),
	}
}

func (s sources) all() []discovery.Source { return []discovery.Source{s.mdns, s.static, s.dns} }

// set takes what the configuration names.
func (s sources) set(peers []string) {
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
	s.static.Set(addrs...)
	s.dns.Set(queries...)
}

// judge tells which names lead nowhere.
func (s sources) judge(t *health.Tracker) {
	said := map[string][2]string{}
	for name, why := range s.dns.Problems() {
		text, cure, _ := strings.Cut(why, "; ")
		said[name] = [2]string{text, cure}
	}
	t.Replace(health.PeerAddress, said)
}
