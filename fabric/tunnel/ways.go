package tunnel

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"rivulet/fabric/tunnel/paths"
)

// ways is the paths manager of one WireGuard device.
type ways struct {
	manager *paths.Manager
	crossed crossed
	ctx     context.Context
	cancel  context.CancelFunc
}

func (s *Server) newWays() *ways {
	w := &ways{manager: paths.New(paths.DefaultTiming, s.news.tell, s.log)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// news tells those who wait that a path has changed.
type news struct {
	mu  sync.Mutex
	now chan struct{} // closed by the next change; nil if nobody waits
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now != nil {
		close(n.now)
		n.now = nil
	}
}

func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		n.now = make(chan struct{})
	}
	return n.now
}

// newsPause makes one line of changes that come together.
const newsPause = 100 * time.Millisecond

// tellPaths answers with a line whenever a path has changed, until the asker or ctx ends.
func (s *Server) tellPaths(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	for {
		next := s.news.next()
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ctx.Done():
			return
		case <-next:
			time.Sleep(newsPause)
			fmt.Fprintln(w, "changed")
		}
	}
}

// WatchPaths calls changed whenever the path to a peer is another, until ctx or the
// process ends.
func (c *Controller) WatchPaths(ctx context.Context, changed func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://tunnel/v1/paths", nil)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	resp, err := c.stream.Do(req)
	if err != nil {
		return fmt.Errorf("tunnel: %w", err)
	}
	defer resp.Body.Close()
	changed() // what has happened before
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		changed()
	}
	return lines.Err()
}

// serve makes the manager work for the device.
func (w *ways) serve(dev *device.Device) {
	w.crossed.begin(wireguard{dev}.Again)
	w.manager.SetDevice(wireguard{dev})
	go w.manager.Run(w.ctx)
}

// wireguard is the device as the paths know it.
type wireguard struct{ *device.Device }

// Use implements paths.Device.
func (d wireguard) Use(public paths.Key, to conn.Endpoint) {
	if p := d.LookupPeer(device.NoisePublicKey(public)); p != nil {
		p.SetEndpointFromPacket(to)
	}
}

// Wake implements paths.Device.
func (d wireguard) Wake(public paths.Key) {
	if p := d.LookupPeer(device.NoisePublicKey(public)); p != nil {
		p.SendKeepalive()
	}
}

// forPaths is what the paths need to know of the configuration.
func (c Config) forPaths() (paths.Config, error) {
	private := key(c.PrivateKey)
	priv, err := ecdh.X25519().NewPrivateKey(private[:])
	if err != nil {
		return paths.Config{}, err
	}
	out := paths.Config{
		Private: private, Public: paths.Key(priv.PublicKey().Bytes()),
		UDP: c.Candidates, TCP: c.Streams, Carry: c.Relay,
	}
	inside := []netip.Prefix{c.PodCIDR}
	for _, p := range c.Peers {
		inside = append(inside, p.Remote)
	}
	never := func(a netip.Addr) bool {
		return c.StreamsOnly || a.IsLoopback() || slices.ContainsFunc(inside, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, p := range c.Peers {
		peer := paths.Peer{ID: p.ID, Public: key(p.PublicKey), Never: never}
		if p.Endpoint.IsValid() {
			peer.UDP = append(peer.UDP, p.Endpoint)
		}
		for _, w := range c.Paths {
			if w.ID == p.ID {
				peer.UDP = append(peer.UDP, w.UDP...)
				peer.TCP = w.TCP
			}
		}
		out.Peers = append(out.Peers, peer)
	}
	return out, nil
}

func key(b64 string) (k paths.Key) {
	raw, _ := base64.StdEncoding.DecodeString(b64) // Config.check saw to it
	copy(k[:], raw)
	return k
}
