package fabric

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"rivulet/fabric/broker"
	"rivulet/fabric/changes"
	"rivulet/fabric/netmon"
	"rivulet/fabric/peer"
	"rivulet/fabric/peering"
	"rivulet/fabric/rpc"
	"rivulet/fabric/tunnel"
	"rivulet/fabric/tunnel/paths"
)

// Optional abilities of a data plane; the tunnel's process has them.
type (
	// taker takes over connections that carry the tunnel where UDP is blocked.
	taker interface {
		HandOver(conn net.Conn, begun []byte) error
	}
	// pathWatcher calls changed whenever the path to a peer has changed, until ctx or the data plane ends.
	pathWatcher interface {
		WatchPaths(ctx context.Context, changed func()) error
	}
)

// candidates are the addresses at which this device may be reached: the IPv4 ones of all of its LANs first, then the first
// IPv6 address of each, the second of each, and so on. IPv6 link-local ones are left out, since they need a link; peers on
// that link use discovery.
func candidates(lans netmon.LANs, port uint16) []netip.AddrPort {
	var four []netip.AddrPort
	var six [][]netip.AddrPort // by their place in their LAN
	for _, i := range lans {
		place := 0
		for _, p := range i.Addrs {
			switch a := netip.AddrPortFrom(p.Addr(), port); {
			case p.Addr().IsLinkLocalUnicast():
			case p.Addr().Is4():
				four = append(four, a)
			default:
				if place == len(six) {
					six = append(six, nil)
				}
				six[place] = append(six[place], a)
				place++
			}
		}
	}
	all := slices.Concat(append([][]netip.AddrPort{four}, six...)...)
	return all[:min(len(all), maxOwnCandidates)]
}

// maxOwnCandidates leaves room for server-reflexive candidates in advertisements.
const maxOwnCandidates = 8

// addPaths adds the inputs of the paths to the data plane's configuration. It is called with the lock of members held.
func (f *Fabric) addPaths(c *tunnel.Config, lans netmon.LANs) {
	c.Relay = f.settings.relays.get()
	c.Brokers = f.brokers.Tunnel()
	c.Candidates = candidates(lans, f.cfg.TunnelPort)
	c.Streams = candidates(lans, f.cfg.Port)
	if p := f.settings.stream.get(); p != 0 && p != f.cfg.Port {
		c.StreamPorts = []uint16{p}
		c.Streams = append(c.Streams, candidates(lans, p)...)
	}
	for _, m := range f.peers() {
		if r := m.Record(); r.Complete() {
			w := tunnel.PeerPaths{ID: string(r.ID)}
			at := m.Addrs()
			for _, a := range at.Known { // the ports are those of the record
				w.UDP = addOnce(w.UDP, netip.AddrPortFrom(a.Addr(), r.Tunnel.Port()))
				w.TCP = addOnce(w.TCP, a)
			}
			for _, a := range at.Announced {
				w.AnnouncedUDP = addOnce(w.AnnouncedUDP, netip.AddrPortFrom(a.Addr(), r.Tunnel.Port()))
				w.AnnouncedTCP = addOnce(w.AnnouncedTCP, a)
			}
			if len(w.UDP)+len(w.TCP)+len(w.AnnouncedUDP)+len(w.AnnouncedTCP) > 0 {
				c.Paths = append(c.Paths, w)
			}
		}
	}
	slices.SortFunc(c.Paths, func(a, b tunnel.PeerPaths) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
}

func addOnce(list []netip.AddrPort, a netip.AddrPort) []netip.AddrPort {
	if !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() || slices.Contains(list, a) {
		return list
	}
	return append(list, a)
}

// pathView has the paths of peers for Peers. It alone writes member.paths, with the lock of members.
type pathView struct {
	data     DataPlane
	members  *members
	brokers  *broker.Client
	problems *problems
	retry    time.Duration
	viewed   chan struct{} // somebody reads the views
	log      *slog.Logger
}

// run updates the paths.
func (v *pathView) run(ctx context.Context) {
	t, ok := v.data.(pathWatcher)
	if !ok {
		return
	}
	go func() { // fresh round trip times for the next reader
		for {
			select {
			case <-ctx.Done():
				return
			case <-v.viewed:
				v.refresh(ctx)
				changes.Wait(ctx, v.retry)
			}
		}
	}()
	for ctx.Err() == nil {
		if err := t.WatchPaths(ctx, func() { v.refresh(ctx) }); err != nil && ctx.Err() == nil {
			v.log.Debug("the tunnel does not tell its paths", "err", err)
		}
		v.members.mu.Lock()
		for _, m := range v.members.all {
			v.members.carries(m, false)
		}
		v.members.mu.Unlock()
		changes.Wait(ctx, v.retry)
	}
}

func (v *pathView) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	status, err := v.data.Status(ctx)
	if err != nil {
		return
	}
	if status.StreamPort != "" {
		v.problems.report("stream-port", &rpc.Error{Code: "stream-port", Message: status.StreamPort, Cure: "end that program, or choose another port (tunnel.streamPort)"})
	} else {
		v.problems.report("stream-port", nil)
	}
	v.members.mu.Lock()
	defer v.members.mu.Unlock()
	news := false
	for _, p := range status.Peers {
		m := v.members.all[p.ID]
		if m == nil {
			continue
		}
		was := m.path()
		m.paths = p.Paths
		v.members.carries(m, m.path() != "")
		news = news || m.path() != was
	}
	if news {
		v.members.changed.Notify()
	}
}

// carries records whether the path to the peer works. It is called with the lock of members held.
func (s *members) carries(m *member, works bool) {
	failed := m.works && !works
	m.works = works
	if failed {
		s.do(m, peering.Ping)
	}
}

// path is the path to the peer in use; empty if unknown.
func (m *member) path() string {
	if len(m.paths) > 0 && m.paths[0].Used {
		return pathName(m.paths[0], nil)
	}
	return ""
}

// pathName is a path for people. Names has those of peers; a relay without one is shown by its ID.
func pathName(w paths.PathStatus, names map[string]string) string {
	if w.Kind == paths.Relay {
		via := w.Via
		if n := names[via]; n != "" {
			via = n
		}
		return "relay via " + via
	}
	return string(w.Kind) + " " + w.Addr.String()
}

// show adds the paths to views. It is called with the lock of members held.
func (v *pathView) show(views []peer.View) {
	names := map[string]string{}
	for _, b := range v.brokers.Tunnel() {
		names[b.ID] = "broker"
	}
	for _, m := range v.members.peers() {
		names[string(m.ID())] = m.Record().Name
	}
	for i := range views {
		m := v.members.byID(views[i].ID)
		if m == nil {
			continue
		}
		for _, w := range m.paths {
			p := peer.Path{Path: pathName(w, names), RTT: w.RTT, Alive: w.Alive, Used: w.Used}
			views[i].Paths = append(views[i].Paths, p)
			if w.Used {
				views[i].Path = p.Path
			}
		}
	}
}

// errNoStreams is for a data plane without streams.
var errNoStreams = errors.New("fabric: no streams here")

// handOver is how the control port passes streams to the data plane.
func (f *Fabric) handOver() rpc.Handover {
	return rpc.Handover{Protocol: tunnel.StreamProtocol, To: func(conn net.Conn, begun []byte) error {
		local, _ := conn.LocalAddr().(*net.TCPAddr)
		if local == nil || local.AddrPort().Addr().Unmap() == f.cfg.TunnelAddress { // no tunnel inside the tunnel
			return errNoStreams
		}
		return takeOver(f.cfg.DataPlane, conn, begun)
	}}
}

// takeOver gives the data plane a connection, with the bytes already read from it.
func takeOver(data DataPlane, conn net.Conn, begun []byte) error {
	t, ok := data.(taker)
	if !ok {
		return errNoStreams
	}
	return t.HandOver(conn, begun)
}
