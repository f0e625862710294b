package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/tunnel/wgdev"
	"rivulet/fabric/wgkey"
)

// Userspace is the tunnel without the host's network: WireGuard and its paths on the caller's TUN, for example a
// network stack in the process. It has no translation, routes or firewall; of a Config it reads the keys, the port, the
// prefixes and the addresses of peers. Methods may be called concurrently.
type Userspace struct {
	log    *slog.Logger
	dev    *wgdev.Device
	news   news
	counts wgdev.Counts

	mu  sync.Mutex
	cfg Config
}

// NewUserspace makes one on the TUN, which Close closes.
func NewUserspace(t tun.Device, log *slog.Logger) *Userspace {
	u := &Userspace{log: log}
	u.dev = wgdev.New(t, wgdev.Options{Log: log, Changed: u.news.notify, Counts: &u.counts})
	return u
}

// Apply makes cfg the whole state, as Server.Apply does.
func (u *Userspace) Apply(cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	cfg, refused := cfg.split()
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.cfg
	u.cfg = uncertain(was, cfg)
	if err := set(u.dev, was, &cfg, refused); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if was.Port == 0 {
		if err := u.dev.Up(); err != nil {
			return fmt.Errorf("tunnel: %w", err)
		}
	}
	u.cfg = cfg
	u.dev.SetPeers(cfg.devicePeers(), cfg.MTU)
	if err := u.dev.Paths.Apply(cfg.forPaths()); err != nil {
		return err
	}
	for id, p := range refused { // there is one peer
		return fmt.Errorf("tunnel: peer %s: %s: %s", id, p.Text, p.Cure)
	}
	return nil
}

// Accept takes a connection that is to become a stream; begun are the bytes already read.
func (u *Userspace) Accept(conn net.Conn, begun []byte) {
	u.dev.Accept(conn, begun)
}

// Begin takes a connection to the peer's end of a stream that another program has opened: see paths.Manager.Begin.
func (u *Userspace) Begin(ctx context.Context, conn net.Conn, publicKey wgkey.Public) error {
	if err := u.dev.Paths.Begin(ctx, conn, publicKey.Bytes()); err != nil {
		return err
	}
	time.AfterFunc(beginAlone, func() { u.shake(publicKey) })
	return nil
}

// beginAlone is how long the peer may take to begin WireGuard's handshake. A peer with a session of the previous
// process does not: then this side begins.
const beginAlone = time.Second

func (u *Userspace) shake(publicKey wgkey.Public) {
	sessions, err := u.dev.Sessions()
	if err == nil && sessions[publicKey.Bytes()].LastHandshake.IsZero() {
		u.dev.Wake(publicKey.Bytes())
	}
}

// Whole reports whether the path to every peer takes packets of any size at the moment: package gso.
func (u *Userspace) Whole() bool { return u.dev.Whole() }

func (u *Userspace) Status() (Status, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	st := Status{PID: os.Getpid(), Port: u.cfg.Port, Peers: []PeerStatus{}}
	sessions, err := u.dev.Sessions()
	if err != nil {
		return st, fmt.Errorf("tunnel: %w", err)
	}
	for _, p := range u.cfg.Peers {
		st.Peers = append(st.Peers, status(p, u.dev, sessions))
	}
	return st, nil
}

func (u *Userspace) Close() { u.dev.Close() }
