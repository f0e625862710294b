// Package tunnel is the data plane: one WireGuard device with all peers on one TUN, address translation between
// clusters (package translate), routes and firewall. It runs in a process of its own, cmd/rivulet-tunnel, so that a
// supervisor that restarts or is upgraded drops no packet; the supervisor's side of it is Controller.
//
//	supervisor                         rivulet-tunnel
//	Controller ──unix socket, JSON──▶ Server ── translate ── wireguard-go ── UDP
//	   │ starts, adopts, restarts        └ riv0, routes, nftables table "rivulet"
//
// The server reads its Config and the host's address changes. It alone writes the TUN device, its settings, its routes
// and the nftables table, and restores them when another program changes them. It has the last Config in memory only:
// the controller restarts a dead server and sends the Config again. A failure is an error of Apply, with a cure, in
// `rivulet status`; a peer that cannot be served has a Problem in Status, and others are not affected.
package tunnel

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/netmon"
	"rivulet/fabric/nft"
	"rivulet/fabric/reach"
	"rivulet/fabric/sysctl"
	"rivulet/fabric/translate"
	"rivulet/fabric/tunnel/wgdev"
	"rivulet/fabric/wgkey"
)

// Server is the data plane of this process. Methods may be called concurrently.
type Server struct {
	log        *slog.Logger
	version    string
	translator translate.Translator
	counts     wgdev.Counts
	news       news // of paths
	tables     *nft.Guard
	rules      *nft.Tables
	reached    *nft.Tables  // package reach's, on a worker alone
	link       atomic.Int64 // the index of the interface

	mu        sync.Mutex
	dev       *wgdev.Device           // nil before the first Config
	tun       *os.File                // of dev
	broken    chan struct{}           // closed when dev has ended by itself
	guard     Config                  // content of the table
	listeners map[uint16]net.Listener // for streams
	cfg       Config                  // what is in force
	refused   map[string]Problem      // by peer: why cfg does not have it as wanted
	unrouted  map[string]Problem      // by peer: why it has no route
	moves     uint32                  // how often the host's addresses changed
	isolated  int                     // checks in a row without isolation, see closeTenants
	sizes     *pathMTUs               // nil if paths cannot be measured
	mtus      map[string]int          // measured, by peer
	deadline  deadline                // of cfg, if it is leased
}

// NewServer returns a data plane without a device.
func NewServer(version string, log *slog.Logger) *Server {
	keeper := nft.NewGuard(0, log)
	return &Server{version: version, log: log, isolated: 2, broken: make(chan struct{}), tables: keeper, rules: keeper.Tables(Table, nftables.TableFamilyIPv4), reached: keeper.Tables(reach.Table, reach.Family)}
}

// Apply makes cfg the whole state. Unchanged peers are not touched. When it fails the previous state stays in force as
// far as possible, and Apply with the same Config may be retried. A leased Config without a deadline ahead is refused, and a device
// that runs is closed.
func (s *Server) Apply(cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	cfg, refused := cfg.split()
	s.mu.Lock()
	defer s.mu.Unlock()
	if cfg.Leased && s.deadline.left() <= 0 {
		s.close()
		return errNoLease
	}
	table, err := cfg.table(s.mtus)
	if err != nil {
		return err
	}
	was := s.cfg
	if s.dev != nil && (was.Interface != cfg.Interface || was.Address != cfg.Address || was.PodCIDR != cfg.PodCIDR || was.Leased != cfg.Leased) {
		s.close()
		was = Config{}
	}
	if s.dev == nil {
		if err := s.open(cfg); err != nil {
			return err
		}
		was = Config{}
	}
	// The guard comes before the first packet, the rules before their peers.
	if err := s.setFirewall(cfg); err != nil {
		return err
	}
	s.translator.Set(table)
	s.cfg = uncertain(was, cfg)
	if err := set(s.dev, was, &cfg, refused); err != nil {
		return s.explain(err, cfg)
	}
	if was.Port == 0 {
		if err := s.dev.Up(); err != nil {
			return s.explain(err, cfg)
		}
	}
	s.cfg = cfg
	s.note(refused)
	s.dev.SetPeers(cfg.devicePeers(), cfg.MTU)
	if err := s.dev.Paths.Apply(cfg.forPaths()); err != nil {
		return err
	}
	s.greet(was, cfg)
	if s.unrouted, err = setLink(cfg, s.mtus); err != nil { // compares with the present state each time
		return err
	}
	s.listenStreams(cfg.StreamPorts)
	s.measure()
	s.log.Info("configuration in force", "peers", len(cfg.Peers), "refused", len(refused), "port", cfg.Port, "mtu", cfg.MTU)
	return nil
}

// uncertain is what may be in force during the change to cfg: all peers that may exist, so that the next Apply sets or
// removes each.
func uncertain(was, cfg Config) Config {
	known := Config{Interface: cfg.Interface, Address: cfg.Address, PodCIDR: cfg.PodCIDR, Leased: cfg.Leased}
	for _, p := range append(append([]Peer(nil), was.Peers...), cfg.Peers...) {
		known.Peers = append(known.Peers, Peer{PublicKey: p.PublicKey})
	}
	return known
}

// set configures the device. A peer that the device refuses is removed from cfg and added to refused.
func set(dev *wgdev.Device, was Config, cfg *Config, refused map[string]Problem) error {
	for _, c := range change(was, *cfg) {
		err := dev.IpcSet(c.text)
		if err != nil && c.peer == "" {
			return err
		}
		if err != nil {
			refused[c.peer] = Problem{Text: "WireGuard does not take it: " + err.Error(), Cure: "restart rivulet on that device; if it comes back, report it as a bug of rivulet"}
			cfg.Peers = slices.DeleteFunc(cfg.Peers, func(p Peer) bool { return p.ID == c.peer })
			if err := dev.IpcSet(fmt.Sprintf("public_key=%s\nremove=true\n", hexKey(c.key))); err != nil {
				return err
			}
		}
	}
	return nil
}

// note records which peers are not served, and logs changes. It is called with mu held.
func (s *Server) note(refused map[string]Problem) {
	for id, p := range refused {
		if s.refused[id] != p {
			s.log.Warn("peer not served", "peer", id, "problem", p.Text, "cure", p.Cure)
		}
	}
	s.refused = refused
}

// openLimit is how long the interface of a killed process may take to disappear.
const openLimit = 2 * time.Second

func (s *Server) open(cfg Config) error {
	// Checked first: the error of CreateTUN does not distinguish this from other failures.
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("tunnel: no TUN device in this kernel (%w): load it with modprobe tun, or make /dev/net/tun", err)
	}
	raw, err := tun.CreateTUN(cfg.Interface, cfg.MTU)
	for end := time.Now().Add(openLimit); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		raw, err = tun.CreateTUN(cfg.Interface, cfg.MTU)
	}
	if errors.Is(err, syscall.EINVAL) && removeStale(cfg.Interface) {
		raw, err = tun.CreateTUN(cfg.Interface, cfg.MTU)
	}
	switch {
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("tunnel: interface %s is in use by another program: end that program", cfg.Interface)
	case errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("tunnel: there is an interface %s that is not ours: remove it (ip link del %s)", cfg.Interface, cfg.Interface)
	case err != nil:
		return fmt.Errorf("tunnel: make interface %s: %w: run as root", cfg.Interface, err)
	}
	own := cfg.Address.As4()
	source := binary.BigEndian.Uint32(own[:])
	if l, err := netlink.LinkByName(cfg.Interface); err == nil {
		s.link.Store(int64(l.Attrs().Index))
	}
	// A leased one goes with its process: another device may be the gateway by then.
	if s.tun = raw.File(); !cfg.Leased {
		if err := persist(s.tun, true); err != nil {
			s.log.Warn("connections from the LAN to peers will end when this process is killed", "err", err)
		}
	}
	s.dev = wgdev.New(raw, wgdev.Options{Log: s.log, Changed: s.news.notify, Translator: &s.translator, Counts: &s.counts,
		Whole: func(packet []byte) bool { return isAsk(packet, source) }})
	go s.ends(s.dev)
	if cfg.Leased {
		if err := s.deadline.arm(s.expire); err != nil {
			s.close()
			return err
		}
	}
	return nil
}

// ends ends the process when the device has ended by itself: the controller starts another one.
func (s *Server) ends(dev *wgdev.Device) {
	<-dev.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == dev {
		s.log.Error("the WireGuard device has ended; this process ends, and the next one makes another")
		close(s.broken)
	}
}

// close closes the device; the TUN interface and its routes go with it.
func (s *Server) close() {
	if s.sizes != nil {
		s.sizes.close()
		s.sizes, s.mtus = nil, nil
	}
	if s.dev != nil {
		s.letGo()
		s.dev.Close()
		if err := s.deadline.disarm(); err != nil {
			s.log.Error("this process ends at the deadline", "err", err)
		}
		s.dev, s.cfg = nil, Config{}
		s.listenStreams(nil)
	}
}

// letGo has the interface go with this process.
func (s *Server) letGo() {
	if err := persist(s.tun, false); err != nil && !errors.Is(err, os.ErrClosed) { // closed: the interface was deleted
		s.log.Warn("the interface stays", "interface", s.cfg.Interface, "err", err)
	}
}

// Close ends the data plane and leaves nothing behind.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
	if err := s.rules.Clear(); err != nil {
		return fmt.Errorf("tunnel: nftables: %w", err)
	}
	return nil
}

// explain names the holder of the port if the port was the failure.
func (s *Server) explain(err error, cfg Config) error {
	if errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "address already in use") {
		return fmt.Errorf("tunnel: port %d/udp is taken%s: end that program; it is tried again by itself",
			cfg.Port, netmon.Listener("udp", int(cfg.Port)))
	}
	return fmt.Errorf("tunnel: %w", err)
}

func (s *Server) Status() (Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{PID: os.Getpid(), Version: s.version, Dropped: s.counts.Dropped.Load(), Peers: []PeerStatus{}}
	if s.dev == nil {
		return st, nil
	}
	st.Port = s.cfg.Port
	sessions, err := s.dev.Sessions()
	if err != nil {
		return st, fmt.Errorf("tunnel: %w", err)
	}
	st.StreamPort = s.listenStreams(s.cfg.StreamPorts) // perhaps it is free now
	if len(s.unrouted) > 0 {                           // perhaps the host's route is gone
		if s.unrouted, err = setLink(s.cfg, s.mtus); err != nil {
			return st, err
		}
	}
	st.Seen, st.Carried = s.dev.Paths.Seen(), s.dev.Paths.Relayed()
	for _, b := range s.cfg.Brokers {
		st.Brokers = append(st.Brokers, BrokerStatus{ID: b.ID, Paths: s.dev.Paths.Status(b.PublicKey.Bytes())})
	}
	for _, p := range s.cfg.Peers {
		ps := status(p, s.dev, sessions)
		ps.MTU = s.cfg.mtuOf(p.ID, s.mtus)
		ps.Problem = first(p.ID, s.unrouted, s.refused)
		st.Peers = append(st.Peers, ps)
	}
	for _, id := range slices.Sorted(maps.Keys(s.refused)) {
		if !s.cfg.has(id) {
			st.Peers = append(st.Peers, PeerStatus{ID: id, Problem: first(id, s.refused)})
		}
	}
	return st, nil
}

// Follow sends a packet to every peer after a change of the host's addresses or its default route, from the present
// address, so that peers update it at once instead of after the next handshake. It restores the table, the interface,
// its settings and its routes after changes by other programs. It returns when ctx ends.
func (s *Server) Follow(ctx context.Context) {
	go s.watchRules(ctx)
	go netmon.FollowLink(ctx, s.log, s.index, s.putBackLink)
	netmon.FollowHost(ctx, s.log, s.moved)
}

// watchRules keeps the tables and the settings of the interface.
func (s *Server) watchRules(ctx context.Context) {
	go func() {
		for ctx.Err() == nil {
			if err := s.tables.Run(ctx, func() {}); ctx.Err() == nil {
				s.log.Warn("the rules are not watched; trying again", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(sysctl.Interval):
			}
		}
	}()
	tick := time.NewTicker(sysctl.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.rules.Changed():
			s.putBackRules()
		case <-s.reached.Changed(): // of the supervisor, except on a worker
			s.putBackReached()
		case <-tick.C:
			s.check()
		}
	}
}

// putBackRules writes the table again. If that fails, no packet comes out of the tunnel until the supervisor, which
// sees this process as a new one, configures it again.
func (s *Server) putBackRules() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == nil {
		return
	}
	if err := s.setFirewall(s.guard); err != nil {
		s.log.Error("the rules cannot be put back; the tunnel ends", "err", err)
		s.close()
	}
}

// putBackReached is putBackRules for the table that a worker has no supervisor's part for.
func (s *Server) putBackReached() {
	s.mu.Lock()
	leaf := s.guard.leaf()
	s.mu.Unlock()
	if leaf {
		s.putBackRules()
	}
}

// check restores what the kernel sends no notices of. It also blocks packets from the tunnel, and the
// network of tenants, while the supervisor does not restore the rules that it owns.
func (s *Server) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.closeTenants(); err != nil {
		s.log.Error("pods of other clusters may not be isolated", "err", err)
	}
	if s.dev == nil || s.cfg.Interface == "" {
		return
	}
	if changed, _ := sysctl.Keep(settings(s.cfg.Interface)...); len(changed) > 0 {
		s.log.Warn("another program has changed settings of the interface; put back", "settings", changed)
	}
	if n, err := nft.Stand(0, reach.Table, reach.Family); err == nil && n == 0 {
		if err := reach.Ensure(s.cfg.Interface, s.cfg.Address, s.cfg.behind()...); err != nil {
			s.log.Error("the rules cannot be put back; the tunnel ends", "err", err)
			s.close()
		}
	}
}

func (s *Server) putBackLink() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == nil || s.cfg.Port == 0 {
		return
	}
	var err error
	if s.unrouted, err = setLink(s.cfg, s.mtus); err != nil {
		s.log.Warn("what another program has changed cannot be put back", "err", err)
	}
}

// index is that of the interface, or 0.
func (s *Server) index() int { return int(s.link.Load()) }

func (s *Server) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == nil {
		return
	}
	s.moves++
	if err := s.dev.BindSetMark(s.moves); err != nil { // see bind.SetMark
		s.log.Warn("the host has moved", "err", err)
	}
	s.dev.Paths.Moved()
	s.dev.SendKeepalivesToPeersWithCurrentKeypair()
	if s.sizes != nil {
		s.sizes.doubt()
	}
}

func (c Config) check() error {
	switch {
	case c.PrivateKey.IsZero():
		return errors.New("tunnel: the key of this cluster is missing")
	case c.Port == 0:
		return errors.New("tunnel: the port is missing")
	case c.Interface == "" || len(c.Interface) > 15:
		return fmt.Errorf("tunnel: %q cannot be the name of an interface", c.Interface)
	case !c.PodCIDR.IsValid() || !c.PodCIDR.Contains(c.Address):
		return fmt.Errorf("tunnel: the address %s is not in the pod CIDR %s", c.Address, c.PodCIDR)
	}
	return nil
}

// table is the translation's, for paths of these MTUs.
func (c Config) table(mtus map[string]int) (*translate.Table, error) {
	var rules []translate.Rule
	var nodes []translate.Node
	for _, p := range c.Peers {
		rules = append(rules, c.rule(p, mtus[p.ID]))
		for _, prefix := range p.Behind {
			nodes = append(nodes, translate.Node{Prefix: prefix, MTU: mtus[p.ID]})
		}
	}
	table, err := translate.Compile(rules, c.MTU)
	if err == nil {
		err = table.WithNodes(nodes, c.MTU)
	}
	return table, err
}

func (c Config) rule(p Peer, mtu int) translate.Rule {
	return translate.Rule{Peer: p.ID, LocalCIDR: c.PodCIDR.Masked(), LocalMappedCIDR: p.LocalMappedCIDR.Masked(), PeerMappedCIDR: p.PeerMappedCIDR.Masked(), MTU: mtu}
}

// part is a part of a change: of one peer, or of the whole with an empty ID.
type part struct {
	peer string
	key  wgkey.Public
	text string
}

// change is the difference from was to cfg, in WireGuard's configuration protocol. A peer's endpoint is written only
// when it changed: WireGuard may have a better one.
func change(was, cfg Config) (parts []part) {
	var b strings.Builder
	if was.PrivateKey != cfg.PrivateKey {
		fmt.Fprintf(&b, "private_key=%s\n", hexKey(cfg.PrivateKey))
	}
	if was.Port != cfg.Port {
		fmt.Fprintf(&b, "listen_port=%d\n", cfg.Port)
	}
	old, keep := map[wgkey.Public]Peer{}, map[wgkey.Public]bool{}
	for _, p := range was.Peers {
		old[p.PublicKey] = p
	}
	for _, p := range cfg.Peers {
		keep[p.PublicKey] = true
	}
	for _, p := range was.Peers {
		if !keep[p.PublicKey] {
			fmt.Fprintf(&b, "public_key=%s\nremove=true\n", hexKey(p.PublicKey))
		}
	}
	if b.Len() > 0 {
		parts = append(parts, part{text: b.String()})
	}
	for _, p := range cfg.Peers {
		o, known := old[p.PublicKey]
		if known && o.equal(p) {
			continue
		}
		b.Reset()
		fmt.Fprintf(&b, "public_key=%s\n", hexKey(p.PublicKey))
		if p.Endpoint.IsValid() && o.Endpoint != p.Endpoint {
			fmt.Fprintf(&b, "endpoint=%s\n", p.Endpoint)
		}
		fmt.Fprintf(&b, "persistent_keepalive_interval=%d\nreplace_allowed_ips=true\nallowed_ip=%s\n",
			int(p.Keepalive/time.Second), p.PeerMappedCIDR.Masked())
		for _, prefix := range p.Behind {
			fmt.Fprintf(&b, "allowed_ip=%s\n", prefix.Masked())
		}
		parts = append(parts, part{peer: p.ID, key: p.PublicKey, text: b.String()})
	}
	return parts
}

func hexKey[K interface{ Bytes() [32]byte }](k K) string {
	raw := k.Bytes()
	return hex.EncodeToString(raw[:])
}

// devicePeers are the device's inputs beside WireGuard's configuration.
func (c Config) devicePeers() (out []wgdev.Peer) {
	for _, p := range c.Peers {
		out = append(out, wgdev.Peer{Key: p.PublicKey.Bytes(), CIDR: p.PeerMappedCIDR, Behind: p.Behind})
	}
	return out
}

// status is the device's report of a peer.
func status(p Peer, dev *wgdev.Device, sessions map[wgdev.Key]wgdev.Session) PeerStatus {
	key := wgdev.Key(p.PublicKey.Bytes())
	s := sessions[key]
	return PeerStatus{ID: p.ID, Endpoint: s.Endpoint, LastHandshake: s.LastHandshake, Received: s.Received, Sent: s.Sent, Paths: dev.Paths.Status(key)}
}
