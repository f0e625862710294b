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

// Userspace is the tunnel without anything of the host's: WireGuard and its paths
// on a TUN of the caller's, a network stack in the process, say. There is no
// translation, no route and no firewall; of a Config it reads the keys, the port,
// the prefixes and where peers may be reached. Methods may be called concurrently.
type Userspace struct {
	log    *slog.Logger
	dev    *wgdev.Device
	news   news
	counts wgdev.Counts

	mu  sync.Mutex
	cfg Config
}

// NewUserspace makes one on the TUN, which it closes when it is closed.
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
	u.dev.SetPeers(cfg.devicePeers())
	if err := u.dev.Paths.Apply(cfg.forPaths()); err != nil {
		return err
	}
	for id, p := range refused { // there is one peer
		return fmt.Errorf("tunnel: peer %s: %s: %s", id, p.Text, p.Cure)
	}
	return nil
}

// Accept takes a connection that is to become a stream; begun is what was read of it.
func (u *Userspace) Accept(conn net.Conn, begun []byte) {
	u.dev.Accept(conn, begun)
}

// Begin takes a connection to the peer's end of a stream that somebody else has opened:
// see paths.Manager.Begin.
func (u *Userspace) Begin(ctx context.Context, conn net.Conn, publicKey wgkey.Public) error {
	if err := u.dev.Paths.Begin(ctx, conn, publicKey.Bytes()); err != nil {
		return err
	}
	time.AfterFunc(beginAlone, func() { u.shake(publicKey) })
	return nil
}

// beginAlone is how long the peer may take to begin WireGuard's handshake. It does not
// if it has a session, with the process that was here before us: then we do.
const beginAlone = time.Second

func (u *Userspace) shake(publicKey wgkey.Public) {
	sessions, err := u.dev.Sessions()
	if err == nil && sessions[publicKey.Bytes()].LastHandshake.IsZero() {
		u.dev.Wake(publicKey.Bytes())
	}
}

// Status is what is known of the peers.
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

// Close ends it, and the TUN.
func (u *Userspace) Close() { u.dev.Close() }
