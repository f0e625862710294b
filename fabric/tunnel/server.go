// Package tunnel is the data plane: one WireGuard device with all peers on one
// TUN, its addresses translated between clusters (package translate), its routes
// and firewall. It runs in a process of its own, cmd/rivulet-tunnel, so that a
// supervisor that restarts or is upgraded drops no packet; the supervisor's side
// of it is Controller.
//
//	supervisor                         rivulet-tunnel
//	Controller ──unix socket, JSON──▶ Server ── translate ── wireguard-go ── UDP
//	   │ starts, adopts, restarts        └ riv0, routes, nftables table "rivulet"
//
// The server reads the Config it is given and the host's address changes, and
// alone writes the TUN device, its routes and the nftables table. It holds the
// last Config in memory only: a server that dies is started again by the
// controller and told again. What the user sees of a failure is an error of
// Apply, with a cure, in `rivulet status`.
package tunnel

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/netmon"
	"rivulet/fabric/translate"
)

// Server is the data plane of this process. Methods may be called concurrently.
type Server struct {
	log        *slog.Logger
	version    string
	translator translate.Translator
	dropped    atomic.Uint64
	news       news          // of paths
	large      atomic.Uint64 // see pathMTU

	mu        sync.Mutex
	dev       *device.Device          // nil before the first Config
	ways      *ways                   // of dev
	staged    *staged                 // in dev
	listeners map[uint16]net.Listener // for streams
	cfg       Config                  // what is in force
	moves     uint32                  // how often the host's addresses changed
	sizes     *pathMTUs               // nil if paths cannot be measured
	mtus      map[string]int          // measured, by peer
}

// NewServer returns a data plane that has no device yet.
func NewServer(version string, log *slog.Logger) *Server {
	return &Server{version: version, log: log}
}

// Apply makes cfg the whole state. Peers that did not change are not touched.
// When it fails the state before stays in force as far as possible, and Apply
// with the same Config may be tried again.
func (s *Server) Apply(cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	table, err := translate.Compile(cfg.rules(s.mtus), cfg.MTU)
	if err != nil {
		return err
	}
	forPaths, err := cfg.forPaths()
	if err != nil {
		return err
	}
	was := s.cfg
	if s.dev != nil && (was.Interface != cfg.Interface || was.Address != cfg.Address || was.PodCIDR != cfg.PodCIDR) {
		s.close()
		was = Config{}
	}
	if s.dev == nil {
		if err := s.open(cfg); err != nil {
			return err
		}
		was = Config{}
	}
	// The guard comes before the first packet, the rules before the peers that
	// they are for.
	if err := setFirewall(cfg); err != nil {
		return err
	}
	s.translator.Set(table)
	s.cfg = uncertain(was, cfg)
	if err := s.dev.IpcSet(change(was, cfg)); err != nil {
		return s.explain(err, cfg)
	}
	if was.Port == 0 {
		if err := s.dev.Up(); err != nil {
			return s.explain(err, cfg)
		}
	}
	s.cfg = cfg
	s.staged.set(cfg)
	if err := s.ways.manager.Apply(forPaths); err != nil {
		return err
	}
	s.greet(was, cfg)
	if err := setLink(cfg, s.mtus); err != nil { // compares with what is there each time
		return err
	}
	s.listenStreams(cfg.StreamPorts)
	s.measure()
	s.log.Info("configuration in force", "peers", len(cfg.Peers), "port", cfg.Port, "mtu", cfg.MTU)
	return nil
}

// uncertain is what is known to be in force while the change to cfg is under way:
// the peers that may be there, so that the next Apply sets or removes each.
func uncertain(was, cfg Config) Config {
	known := Config{Interface: cfg.Interface, Address: cfg.Address, PodCIDR: cfg.PodCIDR}
	for _, p := range append(append([]Peer(nil), was.Peers...), cfg.Peers...) {
		known.Peers = append(known.Peers, Peer{PublicKey: p.PublicKey})
	}
	return known
}

// openLimit is how long the interface of a process that was just killed may take to go.
const openLimit = 2 * time.Second

func (s *Server) open(cfg Config) error {
	// Looked at first: what CreateTUN says of it does not tell it from other failures.
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
	in, out := newFlow(), newFlow()
	s.staged = &staged{}
	out.letGo = s.staged.flush
	s.ways = s.newWays()
	own := cfg.Address.As4()
	bind := &whole{Bind: newBind(s.ways, s.log)}
	rest := &rest{passed: func() uint64 { return in.left.Load() + out.left.Load() }}
	s.dev = device.NewDevice(&translated{Device: raw, translator: &s.translator, dropped: &s.dropped, in: in, out: out,
		own: binary.BigEndian.Uint32(own[:]), marks: &bind.marks, large: &s.large, staged: s.staged, reader: reader{of: rest}},
		&paced{Bind: bind, in: in, out: out, rest: rest}, wireguardLogger(s.log))
	go rest.run(s.ways.ctx, restEvery)
	s.staged.dev.Store(s.dev)
	s.ways.serve(s.dev)
	return nil
}

// close takes the device down; the TUN interface and its routes go with it.
func (s *Server) close() {
	if s.sizes != nil {
		s.sizes.close()
		s.sizes, s.mtus = nil, nil
	}
	if s.dev != nil {
		s.ways.cancel()
		s.dev.Close()
		s.dev, s.ways, s.cfg = nil, nil, Config{}
		s.listenStreams(nil)
	}
}

// Close ends the data plane and leaves nothing behind.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
	return clearFirewall()
}

// explain names who holds the port if that is what failed.
func (s *Server) explain(err error, cfg Config) error {
	if errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "address already in use") {
		return fmt.Errorf("tunnel: port %d/udp is taken%s: end that program; it is tried again by itself",
			cfg.Port, netmon.Listener("udp", int(cfg.Port)))
	}
	return fmt.Errorf("tunnel: %w", err)
}

// Status reports what the device says of itself.
func (s *Server) Status() (Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{PID: os.Getpid(), Version: s.version, Dropped: s.dropped.Load(), Peers: []PeerStatus{}}
	if s.dev == nil {
		return st, nil
	}
	st.Port = s.cfg.Port
	dump, err := s.dev.IpcGet()
	if err != nil {
		return st, fmt.Errorf("tunnel: %w", err)
	}
	st.StreamPort = s.listenStreams(s.cfg.StreamPorts) // perhaps it is free now
	st.Seen, st.Carried = s.ways.manager.Seen(), s.ways.manager.Carried()
	byKey := parseDump(dump)
	for _, p := range s.cfg.Peers {
		ps := byKey[hexKey(p.PublicKey)]
		ps.ID, ps.Paths = p.ID, s.ways.manager.Status(key(p.PublicKey))
		ps.MTU = s.cfg.mtuOf(p.ID, s.mtus)
		st.Peers = append(st.Peers, ps)
	}
	return st, nil
}

// Follow sends a packet to every peer after the host's addresses or its default
// route changed, from whatever address is right now, so that they learn it at
// once instead of after the next handshake.
func (s *Server) Follow(ctx context.Context) error {
	changes, err := hostMoves(ctx)
	if err != nil {
		return err
	}
	for range changes {
		s.moved()
	}
	return nil
}

func (s *Server) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == nil {
		return
	}
	s.moves++
	if err := s.dev.BindSetMark(s.moves); err != nil { // see bind.SetMark
		s.log.Warn("the host has moved", "error", err)
	}
	s.ways.manager.Moved()
	s.dev.SendKeepalivesToPeersWithCurrentKeypair()
	if s.sizes != nil {
		s.sizes.doubt()
	}
}

func (c Config) check() error {
	for name, key := range c.keys() {
		if raw, err := base64.StdEncoding.DecodeString(key); err != nil || len(raw) != 32 {
			return fmt.Errorf("tunnel: the key of %s is not 32 bytes in base64", name)
		}
	}
	switch {
	case c.Port == 0:
		return errors.New("tunnel: the port is missing")
	case c.Interface == "" || len(c.Interface) > 15:
		return fmt.Errorf("tunnel: %q cannot be the name of an interface", c.Interface)
	case !c.PodCIDR.IsValid() || !c.PodCIDR.Contains(c.Address):
		return fmt.Errorf("tunnel: the address %s is not in the pod CIDR %s", c.Address, c.PodCIDR)
	}
	for _, p := range c.Peers {
		for _, q := range c.Peers {
			if q.Remote.Contains(p.Endpoint.Addr().Unmap()) {
				return fmt.Errorf("tunnel: peer %s is at %s, which is in %s, the prefix chosen for peer %s: choose another prefix",
					p.ID, p.Endpoint.Addr(), q.Remote, q.ID)
			}
		}
	}
	return nil
}

func (c Config) keys() map[string]string {
	keys := map[string]string{"this cluster": c.PrivateKey}
	for _, p := range c.Peers {
		keys["peer "+p.ID] = p.PublicKey
	}
	return keys
}

func (c Config) rules(mtus map[string]int) []translate.Rule {
	var rules []translate.Rule
	for _, p := range c.Peers {
		rules = append(rules, translate.Rule{Peer: p.ID, Local: c.PodCIDR.Masked(), As: p.As.Masked(), Remote: p.Remote.Masked(), MTU: mtus[p.ID]})
	}
	return rules
}

// change is what turns was into cfg, in WireGuard's configuration protocol. A
// peer's endpoint is written only when it changed: WireGuard may know a better one.
func change(was, cfg Config) string {
	var b strings.Builder
	if was.PrivateKey != cfg.PrivateKey {
		fmt.Fprintf(&b, "private_key=%s\n", hexKey(cfg.PrivateKey))
	}
	if was.Port != cfg.Port {
		fmt.Fprintf(&b, "listen_port=%d\n", cfg.Port)
	}
	old, keep := map[string]Peer{}, map[string]bool{}
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
	for _, p := range cfg.Peers {
		o, known := old[p.PublicKey]
		if known && o == p {
			continue
		}
		fmt.Fprintf(&b, "public_key=%s\n", hexKey(p.PublicKey))
		if p.Endpoint.IsValid() && o.Endpoint != p.Endpoint {
			fmt.Fprintf(&b, "endpoint=%s\n", p.Endpoint)
		}
		fmt.Fprintf(&b, "persistent_keepalive_interval=%d\nreplace_allowed_ips=true\nallowed_ip=%s\n",
			int(p.Keepalive/time.Second), p.Remote.Masked())
	}
	return b.String()
}

func hexKey(b64 string) string {
	raw, _ := base64.StdEncoding.DecodeString(b64) // Config.check saw to it
	return hex.EncodeToString(raw)
}

func parseDump(dump string) map[string]PeerStatus {
	out := map[string]PeerStatus{}
	key, sec, nsec := "", int64(0), int64(0)
	for line := range strings.Lines(dump) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "public_key" {
			key, sec, nsec = value, 0, 0
			out[key] = PeerStatus{}
			continue
		}
		p := out[key]
		switch name {
		case "endpoint":
			p.Endpoint, _ = netip.ParseAddrPort(value)
		case "last_handshake_time_sec":
			fmt.Sscan(value, &sec)
		case "last_handshake_time_nsec":
			fmt.Sscan(value, &nsec)
		case "rx_bytes":
			fmt.Sscan(value, &p.Received)
		case "tx_bytes":
			fmt.Sscan(value, &p.Sent)
		}
		if sec > 0 {
			p.LastHandshake = time.Unix(sec, nsec)
		}
		if key != "" {
			out[key] = p
		}
	}
	return out
}
