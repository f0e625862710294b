package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"rivulet/fabric/tunnel/paths"
)

// Userspace is the tunnel without anything of the host's: WireGuard and its paths
// on a TUN of the caller's, a network stack in the process, say. There is no
// translation, no route and no firewall; of a Config it reads the keys, the port,
// the prefixes and where peers may be reached. Methods may be called concurrently.
type Userspace struct {
	log    *slog.Logger
	dev    *device.Device
	ways   *ways
	staged *staged
	news   news

	mu  sync.Mutex
	cfg Config
}

// NewUserspace makes one on the TUN, which it closes when it is closed.
func NewUserspace(t tun.Device, log *slog.Logger) *Userspace {
	u := &Userspace{log: log, staged: &staged{}}
	in, out := newFlow(), newFlow()
	out.letGo = u.staged.flush
	u.ways = &ways{manager: paths.New(paths.DefaultTiming, u.news.tell, log)}
	u.ways.ctx, u.ways.cancel = context.WithCancel(context.Background())
	u.dev = device.NewDevice(&counted{Device: t, in: in, out: out},
		&paced{Bind: newBind(u.ways, log), in: in, out: out}, wireguardLogger(log))
	u.staged.dev.Store(u.dev)
	u.ways.serve(u.dev)
	return u
}

// Apply makes cfg the whole state, as Server.Apply does.
func (u *Userspace) Apply(cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	forPaths, err := cfg.forPaths()
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.cfg
	u.cfg = uncertain(was, cfg)
	if err := u.dev.IpcSet(change(was, cfg)); err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	if was.Port == 0 {
		if err := u.dev.Up(); err != nil {
			return fmt.Errorf("tunnel: %w", err)
		}
	}
	u.cfg = cfg
	u.staged.set(cfg)
	return u.ways.manager.Apply(forPaths)
}

// Accept takes a connection that is to become a stream; begun is what was read of it.
func (u *Userspace) Accept(conn net.Conn, begun []byte) {
	u.ways.manager.Accept(u.ways.ctx, conn, begun)
}

// Begin takes a connection to the peer's end of a stream that somebody else has opened:
// see paths.Manager.Begin.
func (u *Userspace) Begin(ctx context.Context, conn net.Conn, publicKey string) error {
	if err := u.ways.manager.Begin(ctx, conn, key(publicKey)); err != nil {
		return err
	}
	time.AfterFunc(beginAlone, func() { u.shake(publicKey) })
	return nil
}

// beginAlone is how long the peer may take to begin WireGuard's handshake. It does not
// if it has a session, with the process that was here before us: then we do.
const beginAlone = time.Second

func (u *Userspace) shake(publicKey string) {
	dump, err := u.dev.IpcGet()
	if err == nil && parseDump(dump)[hexKey(publicKey)].LastHandshake.IsZero() {
		wireguard{u.dev}.Wake(key(publicKey))
	}
}

// Status is what is known of the peers.
func (u *Userspace) Status() (Status, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	st := Status{PID: os.Getpid(), Port: u.cfg.Port, Peers: []PeerStatus{}}
	dump, err := u.dev.IpcGet()
	if err != nil {
		return st, fmt.Errorf("tunnel: %w", err)
	}
	byKey := parseDump(dump)
	for _, p := range u.cfg.Peers {
		ps := byKey[hexKey(p.PublicKey)]
		ps.ID, ps.Paths = p.ID, u.ways.manager.Status(key(p.PublicKey))
		st.Peers = append(st.Peers, ps)
	}
	return st, nil
}

// Close ends it, and the TUN.
func (u *Userspace) Close() {
	u.ways.cancel()
	u.dev.Close()
}

// counted is a TUN whose packets are counted in and out of WireGuard: see flow.
type counted struct {
	tun.Device
	in, out *flow
}

func (t *counted) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	t.out.wait()
	n, err := t.Device.Read(bufs, sizes, offset)
	t.out.enter(n)
	return n, err
}

func (t *counted) Write(bufs [][]byte, offset int) (int, error) {
	defer t.in.leave(len(bufs))
	return t.Device.Write(bufs, offset)
}
